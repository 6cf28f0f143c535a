const badge = document.getElementById("live");
// The server sends sections, perhaps none of them changed, every three seconds.
const SILENT_MS = 10000;
let stream = null, silent = 0, again = 0, isGone = false;

function show(kind, text) {
  badge.className = "live " + kind;
  if (badge.textContent !== text) badge.textContent = text;
}

function replace(name, html) {
  const old = document.getElementById("s-" + name);
  if (!old) return;
  const focused = old.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const left = old.querySelector(".sheet, .scroll")?.scrollLeft;
  const parsed = new DOMParser().parseFromString(html, "text/html").body.firstElementChild;
  old.replaceWith(parsed);
  for (const found of old.querySelectorAll("details")) {
    const same = document.getElementById(found.id);
    if (same) same.open = found.open;
  }
  if (left) parsed.querySelector(".sheet, .scroll").scrollLeft = left;
  if (focused) parsed.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}

// A hidden tab asks for nothing: browsers allow six connections to one server.
function connect() {
  if (document.hidden || stream) return;
  stream = new EventSource(document.body.dataset.updates);
  stream.addEventListener("sections", event => {
    for (const [name, html] of Object.entries(JSON.parse(event.data))) replace(name, html);
    show("on", "Live");
    expectSections();
  });
  stream.addEventListener("gone", () => {
    isGone = true;
    rest();
    show("off", "This stream is no longer shown here. Reload the page.");
  });
  // When the server ends the stream, the browser opens the next one by itself. When the server refuses, the browser gives up.
  stream.addEventListener("error", () => {
    if (stream.readyState === EventSource.CLOSED) { disconnect(); again = setTimeout(connect, 5000); }
  });
}
function disconnect() { stream?.close(); stream = null; }

// Only sections start this time again: a server that refuses, or accepts and sends nothing, must not look alive.
function expectSections() {
  clearTimeout(silent);
  silent = setTimeout(() => show("off", "No connection to Airflow. What you see is old."), SILENT_MS);
}
function watch() { if (!isGone) { expectSections(); connect(); } }
function rest() { clearTimeout(silent); clearTimeout(again); disconnect(); }
document.addEventListener("visibilitychange", () => document.hidden ? rest() : watch());
addEventListener("pagehide", rest);
addEventListener("pageshow", watch);

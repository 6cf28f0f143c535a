const badge = document.getElementById("live");
let stream = null, stopped = 0;

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
    clearTimeout(stopped);
    show("on", "Live");
  });
  stream.addEventListener("open", () => { clearTimeout(stopped); show("on", "Live"); });
  stream.addEventListener("error", () => {
    clearTimeout(stopped);
    // The server ends the stream once a minute, and the browser comes back by itself.
    stopped = setTimeout(() => show("off", "No connection to Airflow. What you see is old."), 6000);
    if (stream.readyState === EventSource.CLOSED) { disconnect(); setTimeout(connect, 5000); }
  });
}
function disconnect() { stream?.close(); stream = null; }
document.addEventListener("visibilitychange", () => document.hidden ? disconnect() : connect());
addEventListener("pagehide", disconnect);
addEventListener("pageshow", connect);

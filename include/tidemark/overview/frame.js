"use strict";
// Airflow shows the page in a frame and has its own switch for light and dark.
const around = window.parent === window ? null : window.parent.document;
function followTheme() {
  const names = around.documentElement.classList;
  document.documentElement.style.colorScheme = names.contains("dark") ? "dark" : names.contains("light") ? "light" : "";
}
if (around) {
  followTheme();
  new MutationObserver(followTheme).observe(around.documentElement, { attributes: true, attributeFilter: ["class"] });
}

// The frame may not replace Airflow's page, so Airflow's own document follows the links that lead out of it.
function leave(address) {
  const outside = (around || document).createElement("a");
  outside.href = address;
  (around || document).body.append(outside);
  outside.click();
  outside.remove();
}
document.addEventListener("click", event => {
  const link = event.target.closest("a[target=_top]");
  if (!link || !around || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  leave(link.href);
});

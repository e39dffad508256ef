// The console's own script: times in the viewer's zone, the theme, the token of htmx requests.
"use strict";
(() => {
  const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

  function localTimes(root) {
    for (const time of root.querySelectorAll("time[datetime]:not([data-age]):not([data-local])")) {
      const at = new Date(time.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      time.dataset.local = "";
      time.textContent = exact.format(at);
    }
  }

  function switchTheme() {
    const root = document.documentElement;
    const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    const next = (root.dataset.theme || system) === "dark" ? "light" : "dark";
    root.dataset.theme = next;
    try { localStorage.setItem("fairlead-theme", next); } catch { /* for this page only */ }
  }

  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-theme-switch]")) switchTheme();
  });
  document.addEventListener("htmx:configRequest", (event) => {
    event.detail.headers["X-CSRF-Token"] = document.body.dataset.csrf;
  });
  document.addEventListener("htmx:afterSettle", (event) => localTimes(event.target));
  localTimes(document);
})();

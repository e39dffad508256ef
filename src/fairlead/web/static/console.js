// The console's own script: times in the viewer's zone, the theme, live updates, and the token of
// htmx requests. Without it, every page still works.
"use strict";
(() => {
  // Times -------------------------------------------------------------------------------------
  const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
  const short = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });

  function localTimes(root) {
    for (const time of root.querySelectorAll("time[datetime]:not([data-age]):not([data-local])")) {
      const at = new Date(time.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      time.dataset.local = "";
      const isToday = at.toDateString() === new Date().toDateString();
      time.textContent = ("short" in time.dataset ? short : isToday ? clock : full).format(at);
      time.title = `${full.format(at)} (${time.title})`;
    }
  }

  // Theme -------------------------------------------------------------------------------------
  function switchTheme() {
    const root = document.documentElement;
    const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    const next = (root.dataset.theme || system) === "dark" ? "light" : "dark";
    root.dataset.theme = next;
    keep("fairlead-theme", next);
  }

  function keep(name, value) {
    try { localStorage.setItem(name, value); } catch { /* for this page only */ }
  }

  function kept(name) {
    try { return localStorage.getItem(name); } catch { return null; }
  }

  // Live updates ------------------------------------------------------------------------------
  // The SSE extension of htmx opens a stream for each element with sse-connect. There is one while
  // the page is visible and not paused.
  const source = document.querySelector("[data-live-source]");
  const liveSwitch = document.querySelector("[data-live-switch]");
  let streams = [];
  let isPaused = kept("fairlead-live") === "paused";

  function follow() {
    if (!source) return;
    const isWanted = !isPaused && !document.hidden;
    if (isWanted && !source.firstChild) {
      const element = document.createElement("div");
      element.setAttribute("hx-ext", "sse");
      element.setAttribute("sse-connect", source.dataset.liveSource);
      element.setAttribute("sse-swap", "changed");
      element.setAttribute("hx-swap", "none");
      source.append(element);
      htmx.process(element);
    } else if (!isWanted) {
      source.replaceChildren();
      for (const stream of streams) stream.close();
      streams = [];
    }
    liveSwitch.hidden = false;
    liveSwitch.textContent = isPaused ? "Paused" : "Live";
    liveSwitch.setAttribute("aria-pressed", String(isPaused));
    liveSwitch.title = isPaused ? "Updates are paused: press to go on" : "Press to pause updates";
  }

  // Whoever fills in a form, or has opened or selected something, keeps what is on the page.
  function isInUse(region) {
    return region.querySelector("details[open], input:checked:not([data-always])") !== null
      || (region.contains(document.activeElement) && document.activeElement.matches("input, select, textarea"))
      || (!getSelection().isCollapsed && region.contains(getSelection().anchorNode));
  }

  // A region that is loaded again keeps the focus on the same link or button.
  let focused = null;

  document.addEventListener("htmx:beforeRequest", (event) => {
    if (event.detail.elt.id === "live" && isInUse(event.detail.elt)) event.preventDefault();
  });
  document.addEventListener("htmx:beforeSwap", (event) => {
    const region = document.getElementById("live");
    const active = document.activeElement;
    focused = null;
    if (event.detail.target === region && region.contains(active) && active !== region) {
      const alike = [...region.querySelectorAll(active.tagName)];
      focused = { tag: active.tagName, index: alike.indexOf(active), text: active.textContent };
    }
  });

  // Pages -------------------------------------------------------------------------------------
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-theme-switch]")) switchTheme();
    if (event.target.closest("[data-live-switch]")) {
      isPaused = !isPaused;
      keep("fairlead-live", isPaused ? "paused" : "on");
      follow();
    }
    const all = event.target.closest("[data-select-all]");
    if (all) {
      for (const box of document.querySelectorAll(`input[type=checkbox][name="${CSS.escape(all.dataset.selectAll)}"]`)) box.checked = all.checked;
    }
    for (const open of document.querySelectorAll("details.confirm[open]")) {
      if (!open.contains(event.target)) open.open = false;
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const open of document.querySelectorAll("details.confirm[open]")) {
      open.open = false;
      open.querySelector("summary").focus();
    }
  });
  document.addEventListener("visibilitychange", follow);
  document.addEventListener("htmx:configRequest", (event) => {
    event.detail.headers["X-CSRF-Token"] = document.body.dataset.csrf;
  });
  document.addEventListener("htmx:afterSettle", () => {
    localTimes(document);
    if (focused) {
      const found = document.querySelectorAll(`#live ${focused.tag}`)[focused.index];
      if (found && found.textContent === focused.text) found.focus({ preventScroll: true });
      focused = null;
    }
  });
  localTimes(document);
  const current = document.querySelector(".menu [aria-current]");
  if (current) current.scrollIntoView({ block: "nearest", inline: "center" });
  if (window.htmx) {
    htmx.createEventSource = (url) => {
      const stream = new EventSource(url);
      streams.push(stream);
      return stream;
    };
    follow();
  }
})();

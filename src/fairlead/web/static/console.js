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

  // A region that is loaded again keeps the focus on the same link or button of the same row: a row
  // is known by its first link, whatever rows came before it meanwhile and whatever its numbers say.
  let focused = null;

  const rowOf = (element) => element.closest("tr");
  const nameOf = (row) => row && row.querySelector("a[href]") && row.querySelector("a[href]").getAttribute("href");
  const alike = (within, element) => [...within.querySelectorAll(element.tagName)];

  function placeOf(element, region) {
    const row = nameOf(rowOf(element)) ? rowOf(element) : null;
    const index = alike(row || region, element).indexOf(element);
    return { row: nameOf(row), tagName: element.tagName, index, text: element.textContent };
  }

  function focusAgain(place, region) {
    const row = [...region.querySelectorAll("tr")].find((each) => nameOf(each) === place.row);
    if (place.row && !row) return;
    const found = alike(row || region, place)[place.index];
    if (found && (row || found.textContent === place.text)) found.focus({ preventScroll: true });
  }

  document.addEventListener("htmx:beforeRequest", (event) => {
    if (event.detail.elt.id === "live" && isInUse(event.detail.elt)) event.preventDefault();
  });
  document.addEventListener("htmx:beforeSwap", (event) => {
    const region = document.getElementById("live");
    const active = document.activeElement;
    const isInside = event.detail.target === region && region.contains(active) && active !== region;
    focused = isInside ? placeOf(active, region) : null;
  });
  document.addEventListener("htmx:afterSwap", () => {
    if (focused) focusAgain(focused, document.getElementById("live"));
    focused = null;
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
  document.addEventListener("htmx:afterSettle", () => localTimes(document));
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

// Runs before the page is painted, so that a chosen theme does not flash.
"use strict";
try {
  const chosen = localStorage.getItem("fairlead-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* storage is switched off: the theme of the system applies */ }

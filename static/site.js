"use strict";
// What every page has. All of it is a convenience: pages work without it.
(() => {
  // A button with data-copy puts the text of the element that it names on the clipboard.
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("button[data-copy]");
    if (!button) return;
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent.trim());
    const label = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = label; }, 1500);
  });
  // Buttons that need a script are hidden until there is one.
  for (const element of document.querySelectorAll("[data-needs-script]")) element.hidden = false;
  document.body.addEventListener("htmx:load", (event) => {
    for (const element of event.target.querySelectorAll("[data-needs-script]")) element.hidden = false;
  });
  // What could not be loaded in place is said, not swallowed.
  document.body.addEventListener("htmx:sendError", () => say("The server cannot be reached. Try again in a moment."));
  document.body.addEventListener("htmx:responseError", (event) => {
    const trace = event.detail.xhr.getResponseHeader("X-Trace-Id");
    say(`This did not work (${event.detail.xhr.status}).${trace ? ` Trace ${trace}` : ""}`);
  });
  function say(text) {
    const note = document.getElementById("said-by-script");
    note.textContent = text;
    note.hidden = false;
  }
})();

"use strict";
// Deploying by dropping a zip, with its upload in percent. The form works without any of it; htmx sends and swaps it.
(() => {
  const form = () => document.getElementById("deploy-form");
  const zone = (event) => event.target.closest?.("[data-drop]");
  const mark = (isOver) => document.querySelector("[data-drop]")?.classList.toggle("over", isOver);

  document.addEventListener("dragover", (event) => { if (zone(event)) { event.preventDefault(); mark(true); } });
  document.addEventListener("dragleave", (event) => { if (zone(event)) mark(false); });
  document.addEventListener("drop", (event) => {
    if (!zone(event) || !event.dataTransfer.files.length) return;
    event.preventDefault();
    mark(false);
    const input = document.getElementById("bundle");
    const one = new DataTransfer();
    one.items.add(event.dataTransfer.files[0]);
    input.files = one.files;
    form().requestSubmit();
  });

  function show(percent) {
    const line = form()?.querySelector(".upload");
    if (!line) return;
    line.hidden = false;
    line.querySelector("progress").value = percent;
    // Said by screen readers: not at every step.
    const text = percent < 100 ? `${Math.floor(percent / 10) * 10} % sent` : "Sent. It is being checked.";
    const said = line.querySelector("span");
    if (said.textContent !== text) said.textContent = text;
  }
  document.body.addEventListener("htmx:xhr:loadstart", (event) => { if (event.target.id === "deploy-form") show(0); });
  document.body.addEventListener("htmx:xhr:progress", (event) => {
    const { loaded, total, lengthComputable } = event.detail;
    if (event.target.id === "deploy-form" && lengthComputable) show((loaded / total) * 100);
  });
  // A refusal is a page too, with what is wrong in it.
  document.body.addEventListener("htmx:beforeSwap", (event) => {
    const { xhr, requestConfig } = event.detail;
    const isPage = xhr.getResponseHeader("Content-Type")?.startsWith("text/html");
    if (requestConfig.elt.id !== "deploy-form" || xhr.status < 400 || xhr.status >= 500 || !isPage) return;
    if (!xhr.responseText.includes('id="deploying"')) return;
    event.detail.shouldSwap = true;
    event.detail.isError = false;
  });
  document.body.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.requestConfig?.elt?.id !== "deploy-form") return;
    (document.getElementById("refused") ?? document.getElementById("build")).focus();
  });
})();

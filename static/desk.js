// A page of the desk that says where work begins has the focus there. The browser's own autofocus comes too early:
// unfold shows its pages only once its script has run.
document.addEventListener("alpine:initialized", () => {
  requestAnimationFrame(() => {
    if (document.activeElement === document.body) document.querySelector("[autofocus]")?.focus();
  });
});

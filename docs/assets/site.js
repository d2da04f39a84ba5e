// The theme's copy buttons stand in landmarks without names.
new MutationObserver(() => {
  document.querySelectorAll(".md-code__nav:not([aria-label])").forEach((nav) => {
    const all = [...document.querySelectorAll("pre")];
    nav.setAttribute("aria-label", `Program ${all.indexOf(nav.closest("pre")) + 1}`);
  });
}).observe(document.body, { childList: true, subtree: true });

// The pages inside are dark where the site is; and as the system is, where a file may not look into a file.
function follow() {
  const theme = document.body.dataset.mdColorScheme === "slate" ? "dark" : "light";
  for (const frame of document.querySelectorAll("iframe.living")) {
    const inside = frame.contentDocument?.documentElement;
    if (inside) inside.dataset.theme = theme;
  }
}
new MutationObserver(follow).observe(document.body, { attributes: true, attributeFilter: ["data-md-color-scheme"] });
for (const frame of document.querySelectorAll("iframe.living")) frame.addEventListener("load", follow);
follow();

// Marks the section that is being read in the outline. Without scripts the outline is a list of links.
"use strict";
(() => {
  const links = new Map([...document.querySelectorAll(".outline a")].map((link) => [link.hash.slice(1), link]));
  const headings = [...links.keys()].map((id) => document.getElementById(id));
  const mark = () => {
    const current = headings.filter((heading) => heading.getBoundingClientRect().top < innerHeight / 3).at(-1);
    for (const [id, link] of links) {
      if (id === current?.id) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  };
  addEventListener("scroll", mark, { passive: true });
  mark();
})();

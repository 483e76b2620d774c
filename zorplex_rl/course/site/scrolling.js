// What may scroll (tables, figures) stops the Tab key only while it does scroll. Without scripts all of it does.
"use strict";
(() => {
  const reach = ({ target }) => { target.tabIndex = target.scrollWidth > target.clientWidth + 1 || target.scrollHeight > target.clientHeight + 1 ? 0 : -1; };
  const observer = new ResizeObserver((entries) => entries.forEach(reach));
  for (const target of document.querySelectorAll(".lesson-table[tabindex], .lesson-figure[tabindex]")) {
    reach({ target });
    observer.observe(target);
  }
})();

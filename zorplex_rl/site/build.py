"""Builds the site: all notebooks of a folder, one after the other, so that none measures itself beside another."""

from __future__ import annotations

import re
import shutil
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from zorplex_rl.errors import SiteError
from zorplex_rl.site.export import export
from zorplex_rl.site.frame import contents_page, lesson_page
from zorplex_rl.site.page import Lesson, Page


def build_site(notebooks: Path, site: Path, say: Callable[[str], None] = lambda text: None) -> list[Lesson]:
    """Run and publish every ``NN_*.py`` of ``notebooks`` into the folder ``site``, and zip it as ``site``.zip beside it.

    SiteError, and nothing published, if any cell of any notebook failed, was skipped or did not run.
    """
    course = sorted(notebooks.glob("[0-9]*.py"))
    if not course:
        raise SiteError(f"{notebooks} has no notebook; expected files like 05_rl_intro.py")
    _refuse_foreign_folder(site)
    pages, complaints = [], []
    for notebook in course:
        start = time.monotonic()
        pages.append(Page.read(export(notebook)))
        found = pages[-1].complaints
        complaints += [f"{notebook.name}: {complaint}" for complaint in found]
        state = f"{len(found)} of its cells cannot be published" if found else "ok"
        say(f"{notebook.name}: {len(pages[-1].cells)} cells in {time.monotonic() - start:.0f} s, {state}")
    if complaints:
        raise SiteError("no site was built:\n" + "\n".join(complaints))
    lessons = [page.lesson for page in pages]
    publish(course, pages, lessons, site)
    say(
        f"{site}: {len(pages)} pages and their contents; the same in {zip_site(site)}, for a classroom without a network"
    )
    return lessons


def publish(course: list[Path], pages: list[Page], lessons: list[Lesson], site: Path) -> None:
    """Write every page, the contents and the notebooks themselves into ``site``, in place of what an earlier build has left."""
    shutil.rmtree(site, ignore_errors=True)
    site.mkdir(parents=True)
    links = [(f"{notebook.stem}.html", lesson.title) for notebook, lesson in zip(course, lessons, strict=True)]
    around = [None, *links, None]
    for index, (notebook, page, lesson) in enumerate(zip(course, pages, lessons, strict=True)):
        written = lesson_page(page, lesson, notebook.name, around[index], around[index + 2])
        (site / links[index][0]).write_text(written, encoding="utf-8")
        shutil.copyfile(notebook, site / notebook.name)
    files = [file for file, _ in links]
    (site / "index.html").write_text(contents_page(list(zip(files, lessons, strict=True))), encoding="utf-8")
    for page in site.glob("*.html"):
        check_links(page)


def check_links(page: Path) -> None:
    """SiteError if ``page`` links to a file that is not there, or would fetch anything from elsewhere."""
    source = page.read_text(encoding="utf-8")
    for target in re.findall(r'<a\b[^>]*\bhref="([^"#:]+)"', source):
        if not (page.parent / target).exists():
            raise SiteError(f"{page.name} links to {target}, which is not part of the site")
    if fetched := re.search(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="(?!data:)[^"]+"', source):
        raise SiteError(f"{page.name} would fetch {fetched[0][:120]}; put it into the page itself")


def zip_site(site: Path) -> Path:
    """``site``.zip, which holds the folder under its own name."""
    site = site.resolve()
    target = site.with_name(f"{site.name}.zip")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(path for path in site.rglob("*") if path.is_file()):
            archive.write(file, Path(site.name) / file.relative_to(site))
    return target


def _refuse_foreign_folder(site: Path) -> None:
    if site.exists() and any(site.iterdir()) and not (site / "index.html").exists():
        raise SiteError(f"{site} holds something that is no site; give another folder, or empty it")

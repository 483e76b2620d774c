"""Builds the site: all notebooks of a folder, one after the other, so that none measures itself beside another."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from zorplex_rl.errors import ConfigError, SiteError
from zorplex_rl.site.export import export
from zorplex_rl.site.frame import contents_page, lesson_page
from zorplex_rl.site.page import Lesson, Page

MARKER = ".zorplex-site"
"""The file by which a build knows its own work: it lists every file that the build has put into the folder."""


def build_site(notebooks: Path, site: Path, say: Callable[[str], None] = lambda text: None) -> list[Lesson]:
    """Run and publish every ``NN_*.py`` of ``notebooks`` into the folder ``site``, and zip it as ``site``.zip beside it.

    What an earlier build has put there is replaced; nothing else is ever deleted or written over. Raises ConfigError, before any notebook runs,
    where that is not possible, and SiteError, with nothing published, if any cell of any notebook failed, was skipped or did not run.
    """
    course = sorted(notebooks.glob("[0-9]*.py"))
    if not course:
        raise ConfigError(f"{notebooks} has no notebook; expected files like 05_rl_intro.py")
    site = site.resolve()
    check_place(site, course)
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
    """Write every page, the contents and the notebooks themselves into ``site``, in place of what an earlier build has left there.

    Raises SiteError if a page links to what is not there; then ``site`` is as it was.
    """
    links = [(f"{notebook.stem}.html", lesson.title) for notebook, lesson in zip(course, lessons, strict=True)]
    around = [None, *links, None]
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder)
        for index, (notebook, page, lesson) in enumerate(zip(course, pages, lessons, strict=True)):
            written = lesson_page(page, lesson, notebook.name, around[index], around[index + 2])
            (draft / links[index][0]).write_text(written, encoding="utf-8")
            shutil.copyfile(notebook, draft / notebook.name)
        files = [file for file, _ in links]
        (draft / "index.html").write_text(contents_page(list(zip(files, lessons, strict=True))), encoding="utf-8")
        for page in draft.glob("*.html"):
            check_links(page)
        # Looked at again: the notebooks took minutes, in which the folder may have become somebody's.
        check_place(site, course)
        earlier, names = _own_files(site), sorted(path.name for path in draft.iterdir())
        site.mkdir(parents=True, exist_ok=True)
        # Before anything is moved, so that a build that is interrupted leaves a folder that the next one knows.
        (site / MARKER).write_text("\n".join(sorted({*earlier, *names})) + "\n")
        for name in earlier:
            (site / name).unlink(missing_ok=True)
        for name in names:
            shutil.copyfile(draft / name, site / name)
        (site / MARKER).write_text("\n".join(names) + "\n")


def check_place(site: Path, course: list[Path]) -> None:
    """Raise ConfigError unless ``site`` and ``site``.zip are free, or what an earlier build has made.

    A folder is an earlier build's if it holds ``MARKER``, a zip if it holds the folder's. Files in such a folder that no build wrote stay.
    """
    archive = site.with_name(f"{site.name}.zip") if site.name else None
    if archive is None:
        raise ConfigError(f"{site} cannot become a site; give a folder")
    try:
        if (site.exists() or site.is_symlink()) and not site.is_dir():
            raise ConfigError(f"{site} is no folder; give another name for the site")
        if site.is_dir() and any(site.iterdir()) and not (site / MARKER).is_file():
            raise ConfigError(
                f"{site} holds something that is no site of this course (it has no {MARKER}); give another folder, or empty it yourself"
            )
        own = _own_files(site)
        for name in ["index.html", *(name for notebook in course for name in (f"{notebook.stem}.html", notebook.name))]:
            if (site / name).exists() and name not in own:
                raise ConfigError(f"{site / name} was not written by a build; move it, or give another folder")
        if archive.exists() and not _is_own(archive, site.name):
            raise ConfigError(f"{archive}, beside the site, is no zip of this course; move it, or give another folder")
    except OSError as error:
        raise ConfigError(f"{site} cannot be looked at ({error.strerror}); give another folder") from error


def _own_files(site: Path) -> list[str]:
    """The names of the files in ``site`` that an earlier build has written. A name with a folder in it is none of a build's."""
    marker = site / MARKER
    names = marker.read_text(errors="replace").splitlines() if marker.is_file() else []
    return [name for name in names if name and name == Path(name).name and not (site / name).is_dir()]


def _is_own(archive: Path, name: str) -> bool:
    try:
        with zipfile.ZipFile(archive) as opened:
            return f"{name}/{MARKER}" in opened.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def check_links(page: Path) -> None:
    """SiteError if ``page`` links to a file that is not there, or would fetch anything from elsewhere."""
    source = page.read_text(encoding="utf-8")
    for target in re.findall(r'<a\b[^>]*\bhref="([^"#:]+)"', source):
        if not (page.parent / target).exists():
            raise SiteError(f"{page.name} links to {target}, which is not part of the site")
    if fetched := re.search(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="(?!data:)[^"]+"', source):
        raise SiteError(f"{page.name} would fetch {fetched[0][:120]}; put it into the page itself")


def zip_site(site: Path) -> Path:
    """Write ``site``.zip, which holds what the build has put into the folder, under the folder's name; replaces an older one when it is whole."""
    target = site.with_name(f"{site.name}.zip")
    with tempfile.NamedTemporaryFile(dir=site.parent, prefix=f".{site.name}.", suffix=".zip", delete=False) as draft:
        try:
            with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
                for name in (MARKER, *_own_files(site)):
                    archive.write(site / name, Path(site.name) / name)
            Path(draft.name).chmod(0o644)
            Path(draft.name).replace(target)
        except BaseException:
            Path(draft.name).unlink(missing_ok=True)
            raise
    return target

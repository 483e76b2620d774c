"""Build the site from all notebooks of a folder, one after another, so that no notebook disturbs
the timings of another."""

import html
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from zorplex_rl.course.site import reference, search
from zorplex_rl.course.site.contents import built_by, card_of
from zorplex_rl.course.site.export import end_exports, export
from zorplex_rl.course.site.frame import (
    MOVED,
    contents_page,
    glossary_page,
    lesson_page,
    moved_page,
    search_page,
    stacks_page,
)
from zorplex_rl.course.site.page import Lesson, Page
from zorplex_rl.errors import ConfigError, SiteError

MARKER = ".zorplex-site"
"""Name of the file that lists every file which a build wrote into the folder; it marks the folder
as a build's own."""


def build_site(
    notebooks: Path,
    site: Path,
    say: Callable[[str], None] = lambda text: None,
    record: Path | None = None,
    jobs: int = 1,
) -> list[Lesson]:
    """Run and publish every ``NN_*.py`` of ``notebooks`` into the folder ``site``, and zip it as
    ``site``.zip beside it.

    Replaces the files of an earlier build; never deletes or overwrites anything else. With
    ``record``, writes the seconds of every notebook there. Runs ``jobs`` notebooks at a time: what
    they measure is disturbed then, but all is run. Returns the facts of every lesson.

    Raises ConfigError, or OSError, before any notebook runs if that is not possible. Raises SiteError and
    publishes nothing if any cell of any notebook failed, was skipped or did not run.
    """
    course = sorted(notebooks.glob("[0-9]*.py"))
    if not course:
        raise ConfigError(f"{notebooks} has no notebook; expected files like 05_rl_intro.py")
    site = site.resolve()
    check_place(site)
    if record and jobs > 1:
        raise ConfigError(
            "--record needs --jobs 1: notebooks that run together disturb each other's seconds"
        )
    if record:
        record.open("a").close()
        # Calibrating imports torch, which a build needs for nothing else.
        from zorplex_rl.course import notebook_seconds
        from zorplex_rl.course.lesson.lesson import machine
    calibrations: list[float] = []

    def timed_page(notebook: Path) -> tuple[Page, float]:
        if record:
            # A machine's speed changes within minutes, so it is measured as often as the notebooks
            # are.
            calibrations.append(notebook_seconds.seconds_per_step())
        start = time.monotonic()
        page = Page.read(export(notebook, jobs=jobs))
        return page, time.monotonic() - start

    read = dict[Path, Page]()
    complaints = []
    seconds = {}
    # Those with a real model take longest, then the last: begun first, none of them runs alone at the end.
    last = sorted(course, key=lambda path: ("real_model" in path.read_text(), path))
    order = course if jobs == 1 else last[::-1]
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for notebook, (page, taken) in zip(order, pool.map(timed_page, order), strict=True):
                read[notebook] = page
                complaints += [f"{notebook.name}: {complaint}" for complaint in page.complaints]
                state = (
                    f"{len(page.complaints)} of its cells cannot be published"
                    if page.complaints
                    else "ok"
                )
                seconds[notebook.stem] = round(taken, 1)
                say(f"{notebook.name}: {len(page.cells)} cells in {taken:.0f} s, {state}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            end_exports()
            raise
    if complaints:
        raise SiteError("no site was built:\n" + "\n".join(complaints))
    pages = [read[notebook] for notebook in course]
    lessons = [page.lesson for page in pages]
    if not search.installed():
        say(search.WITHOUT)
    publish(course, pages, lessons, site)
    if record:
        calibration = median(calibrations)
        notebook_seconds.record(record, machine(), calibration, seconds)
        say(
            f"{record}: the seconds of {len(seconds)} notebooks, calibration {calibration:.3f} s a step"
        )
    say(
        f"{site}: {len(pages)} pages and their contents; the same in {zip_beside(site)}, for a classroom without a network. "
        f"To serve them: python -m http.server -d {site}"
    )
    return lessons


def publish(course: list[Path], pages: list[Page], lessons: list[Lesson], site: Path) -> None:
    """Write every page, the contents page and the notebooks into ``site``, and all of them into
    ``site``.zip; remove the files of an earlier build.

    Raises SiteError if a page has a broken link; ``site`` is unchanged then.
    """
    searchable = search.installed()
    links = [
        (f"{notebook.stem}.html", lesson.title)
        for notebook, lesson in zip(course, lessons, strict=True)
    ]
    around = [None, *links, None]
    # Beside the site: from there the finished zip can be renamed.
    with tempfile.TemporaryDirectory(dir=site.parent, prefix=f".{site.name}.") as folder:
        draft, texts = Path(folder) / site.name, []
        draft.mkdir()
        for index, (notebook, page, lesson) in enumerate(zip(course, pages, lessons, strict=True)):
            written = lesson_page(
                page, lesson, notebook.name, around[index], around[index + 2], searchable
            )
            (draft / links[index][0]).write_text(written, encoding="utf-8")
            texts.append((*links[index], written))
            shutil.copyfile(notebook, draft / notebook.name)
        parts = [
            (file, page, lesson, text)
            for (file, _, text), page, lesson in zip(texts, pages, lessons, strict=True)
        ]
        built = built_by(course[0].parent.parent / "README.md") if course else {}
        cards = [
            card_of(*part, built.get(notebook.stem, ""))
            for part, notebook in zip(parts, course, strict=True)
        ]
        contents = contents_page(cards, searchable)
        (draft / "index.html").write_text(contents, encoding="utf-8")
        (draft / "glossary.html").write_text(glossary_page(texts, searchable), encoding="utf-8")
        (draft / reference.PAGE).write_text(stacks_page(searchable), encoding="utf-8")
        if searchable:
            # Not the contents: their words are those of the pages.
            found = {
                path.name: path.read_text(encoding="utf-8") for path in sorted(draft.glob("*.html"))
            }
            del found["index.html"]
            (draft / search.PAGE).write_text(search_page(found), encoding="utf-8")
        for old, new in MOVED.items():
            if (draft / new).exists():
                (draft / old).write_text(moved_page(new), encoding="utf-8")
        for written_page in draft.glob("*.html"):
            check_links(written_page)
        earlier, names = _own_files(site), sorted(path.name for path in draft.iterdir())
        (draft / MARKER).write_text("\n".join(names) + "\n")
        archive = shutil.make_archive(str(draft), "zip", folder, site.name)
        site.mkdir(parents=True, exist_ok=True)
        # Write the marker first, so that the next build recognises the folder of an interrupted
        # one.
        (site / MARKER).write_text("\n".join(sorted({*earlier, *names})) + "\n")
        for name in earlier:
            (site / name).unlink(missing_ok=True)
        for name in (*names, MARKER):
            shutil.copyfile(draft / name, site / name)
        Path(archive).replace(zip_beside(site))


def check_place(site: Path) -> None:
    """Check that ``site`` is free, or made by an earlier build, which left ``MARKER`` in it: then it
    and ``site``.zip are replaced, and its other files stay. Raises ConfigError."""
    archive = zip_beside(site)
    site.parent.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=site.parent).close()
    if (site / MARKER).is_file():
        return
    if site.is_file() or (site.is_dir() and any(site.iterdir())) or archive.exists():
        raise ConfigError(
            f"{site}, or {archive.name} beside it, was not made by a build; give another folder"
        )


def zip_beside(site: Path) -> Path:
    """Return where the zip of ``site`` is."""
    return site.with_name(f"{site.name}.zip")


def _own_files(site: Path) -> list[str]:
    """Return the names of the files in ``site`` that an earlier build wrote."""
    marker = site / MARKER
    names = marker.read_text().splitlines() if marker.is_file() else []
    return [name for name in names if name == Path(name).name and (site / name).is_file()]


def check_links(page: Path) -> None:
    """Check the links of ``page``. Raises SiteError if it links to a missing file or anchor, or
    would load anything from outside the page."""
    source = page.read_text(encoding="utf-8")
    for address in re.findall(r'<a\b[^>]*\bhref="([^":]+)"', source):
        name, _, anchor = html.unescape(address).partition("#")
        target = page.parent / name if name else page
        if not target.exists():
            raise SiteError(f"{page.name} links to {name}, which is not part of the site")
        if anchor and f' id="{html.escape(anchor)}"' not in target.read_text(encoding="utf-8"):
            raise SiteError(f"{page.name} links to {address}, and {target.name} has no such place")
    if fetched := re.search(
        r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="(?!data:)[^"]+"', source
    ):
        raise SiteError(f"{page.name} would fetch {fetched[0][:120]}; put it into the page itself")

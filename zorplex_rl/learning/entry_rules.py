"""The rules of a speedrun that a program can see in the text of an entry.

Three ideas: no data comes in with the text (sizes, numbers, texts, names), no name reaches around
the interface (imports, attributes, what Python keeps in underscores), and nothing runs before the
clock does. What a text cannot show is left to the entry's own process (``entry.py``, ``landlock.py``)
and to the referee, which gives that process nothing worth taking.
"""

from __future__ import annotations

import ast
import pkgutil
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields

import torch

from zorplex_rl.learning.entry import OFFERED
from zorplex_rl.policy.load import BytePairs, Policy
from zorplex_rl.task.episode import Task
from zorplex_rl.task.specs import ZORPLEX_WORDS

LARGEST_FILE, LONGEST_TEXT, MOST_TEXT, MOST_NUMBERS = 16_384, 200, 4_000, 200
"""Bytes of an entry, of a text in it, of all texts, and how many numbers: too few for weights."""
LONGEST_NAME, MOST_BITS = 50, 64
"""Bytes of a name, bits of a whole number: data can be in these, too."""
MODULES = "__future__ collections dataclasses functools itertools math random re statistics torch".split()
PARTS = "autograd distributions fft func linalg nn optim special".split()
"""Of torch, what an entry may import."""
FORBIDDEN = (
    "open exec eval compile getattr setattr delattr globals locals vars input breakpoint from_file load hub jit ops "
    "serialization cpp_extension multiprocessing library package sys os modules distributed save load_file save_file "
    "load_library format format_map type make_dataclass update_wrapper wraps gi_frame gi_code cr_frame cr_code "
    "ag_frame ag_code tb_frame tb_next f_back f_globals f_locals f_builtins f_code save_pretrained benchmark "
    "tokenizer get_vocab collect_env profiler testing export onnx fx DataLoader np set_num_threads set_num_interop_threads "
    "mro FunctionMeta VariableMeta ABCMeta EnumMeta EnumType FunctionType CodeType MethodType attrgetter methodcaller "
    "dispatch_table get_parameter get_submodule get_buffer ParameterDict prune parametrize parametrizations weight_norm "
    "spectral_norm set_submodule attrname lr_scheduler LRScheduler SWALR manager handlers loads dist mp"
).split()
"""Names that an entry must not use: they read files, run texts, read or make attributes by the text
of their names, use more than one thread, know all words of the tasks, or reach around what this program checks in another way."""
IN_TORCH = {module.name for module in pkgutil.iter_modules(torch.__path__)} - {*PARTS}
ELSEWHERE = (sys.stdlib_module_names | IN_TORCH) - {*MODULES, "copy", "select", "cpu", "functional", "utils"}
"""Modules that hang on others, as ``dataclasses.inspect`` does, except those whose names are also a
tensor's methods, or a list's, or parts of ``torch.nn``."""
KEPT = {field.name for kind in (Task, Policy) for field in fields(kind)} - {"model"} | {*vars(BytePairs)}
"""Attributes that decide what the policy is asked: set in their class, a task that was given asks another question."""


def complaints(source: str) -> Iterator[str]:
    """Yield what the rules forbid in an entry's ``source``, as far as a program sees it."""
    if (size := len(source.encode())) > LARGEST_FILE:
        yield f"it has {size} bytes; at most {LARGEST_FILE} are allowed"
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except SyntaxError as error:
        yield f"it is no Python: {error.msg}, in line {error.lineno}"
        return
    except (ValueError, RecursionError, MemoryError) as error:  # The last: too deep, and it has no words.
        yield f"it is no Python: {str(error) or 'it is nested too deeply'}"
        return
    if not any(isinstance(node, ast.ClassDef) and node.bases for node in nodes):
        yield "it has no class that extends Entry"
    for rule in (_data, _imports, _names, _early):
        yield from rule(nodes)
    # A text may spell a word by escapes, so as Python reads it, too.
    texts = [str(n.value) for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str | bytes)]
    letters = set(re.findall("[a-z]+", " ".join((source, *texts)).lower()))
    yield from (f"it names {word!r}, a word of the tasks" for word in ZORPLEX_WORDS if word in letters)


def _data(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield where the text could hold weights or values: in numbers, texts, or names."""
    notes = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    constants = [node for node in nodes if isinstance(node, ast.Constant)]
    values = [node.value for node in constants if id(node) not in notes]
    if (numbers := sum(isinstance(value, int | float | complex) for value in values)) > MOST_NUMBERS:
        yield f"it has {numbers} numbers; at most {MOST_NUMBERS} are allowed"
    for bits in (value.bit_length() for value in values if isinstance(value, int)):
        if bits > MOST_BITS:
            yield f"it has a number of {bits} bits; at most {MOST_BITS} are allowed"
    if (written := sum(_size(node.value) for node in constants)) > MOST_TEXT:
        yield f"its texts have {written} bytes; at most {MOST_TEXT} are allowed"
    for size in filter(lambda size: size > LONGEST_TEXT, map(_size, values)):
        yield f"it has a text of {size} bytes; at most {LONGEST_TEXT} are allowed"
    for size in filter(lambda size: size > LONGEST_NAME, map(_size, _all_names(nodes))):
        yield f"it has a name of {size} bytes; at most {LONGEST_NAME} are allowed"


def _size(value: object) -> int:
    """Return the bytes of a text, 0 for anything else. A character may hold up to four."""
    if isinstance(value, str):
        return len(value.encode(errors="surrogatepass"))
    return len(value) if isinstance(value, bytes) else 0


def _all_names(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield every name in the tree, whatever field of whatever node it is."""
    for node in (node for node in nodes if not isinstance(node, ast.Constant)):
        for _, found in ast.iter_fields(node):
            yield from (name for name in (found if isinstance(found, list) else [found]) if isinstance(name, str))


def _imports(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield what is imported and is neither offered nor a module that only computes."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "zorplex_rl.learning.entry":
            yield from (
                f"it imports {a.name}; {', '.join(OFFERED)} are offered" for a in node.names if a.name not in OFFERED
            )
        elif isinstance(node, ast.Import | ast.ImportFrom):
            modules = [node.module or "."] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            yield from (f"it imports {module}" for module in modules if module.split(".")[0] not in MODULES)
            yield from (f"it imports all of {modules[0]}; name what it uses" for a in node.names if a.name == "*")
            full = [f"{modules[0]}.{a.name}" for a in node.names] if isinstance(node, ast.ImportFrom) else modules
            inner = [module.split(".")[1] for module in full if module.startswith("torch.")]
            yield from (f"it imports torch.{part}" for part in inner if part in IN_TORCH)


def _names(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield the names that lead to what an entry must not have."""
    for node in nodes:
        names: list[str] = []
        if isinstance(node, ast.Name):
            names = [node.id]
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
            if node.attr == "utils":
                yield "it uses utils, of which torch has others; import from torch.nn.utils what it uses"
            if not isinstance(node.ctx, ast.Load) and node.attr in KEPT:
                yield f"it sets {node.attr}, which decides what the policy is asked"
            if not isinstance(node.ctx, ast.Load) and node.attr in ("Tensor", "Parameter", "Module"):
                yield f"it sets {node.attr}, by which torch checks what it is given"
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            names = [node.name]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            dotted = [getattr(node, "module", None) or "", *(a.name for a in node.names)]
            names = [part for name in dotted for part in name.split(".") if part != "__future__"]
        elif isinstance(node, ast.Match):
            yield f"it uses match in line {node.lineno}, whose patterns read attributes"
        if isinstance(node, ast.Attribute | ast.Import | ast.ImportFrom):
            yield from (f"it uses {name}, a module" for name in names if name in ELSEWHERE)
        refused = (name for name in names if name in FORBIDDEN or name.startswith("_"))
        yield from (f"it uses {name} in line {getattr(node, 'lineno', '?')}" for name in refused)
    yield from (f"it uses {name}" for name in _all_names(nodes) if name.startswith("__") and name != "__future__")


def _early(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield what computes while the text is loaded: outside of functions. The values of defaults
    are computed when a function is made, and a decorator or a class's keyword calls what it names.
    """
    bodies: list[ast.AST] = [line for node in nodes if isinstance(node, ast.FunctionDef) for line in node.body]
    bodies += [node.body for node in nodes if isinstance(node, ast.Lambda)]
    inside = {id(part) for body in bodies for part in ast.walk(body)}
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            if node.decorator_list or getattr(node, "keywords", []):
                yield f"it has a decorator or a keyword at {node.name}, which run before the clock"
        elif isinstance(node, ast.Call | ast.For | ast.While | ast.comprehension) and id(node) not in inside:
            yield f"it computes in line {getattr(node, 'lineno', '?')}, outside of its functions, before the clock runs"

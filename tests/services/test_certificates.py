"""The files with which machines know each other: made once, added to, never overwritten; what is
wrong with them is one sentence."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import ssl
import threading
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from zorplex_rl.cli.commands import main
from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError, HostError
from zorplex_rl.services import certificates, lifeline, tls
from zorplex_rl.services.certificates import AUTHORITY_KEY, make_certificates
from zorplex_rl.services.tls import AUTHORITY, CERTIFICATE, KEY, ask, check_files, client_context, server_context
from zorplex_rl.training.hosts.checks import check_cluster

HERE = "tls://127.0.0.1:4444"


@pytest.fixture
def made(tmp_path) -> Path:
    """Files for host a, which is this machine, for b, and for the controller."""
    make_certificates(tmp_path / "made", ["a,localhost,127.0.0.1", "b"], None, days=1)
    return tmp_path / "made"


@pytest.fixture
def use(monkeypatch):
    """``use(folder)``: have this process use the files in ``folder``."""
    return lambda folder: monkeypatch.setenv(tls.TLS, str(folder))


def test_each_machine_gets_its_own_key_and_none_the_authoritys(made):
    check_files(made / "a", HERE)
    keys = {path.parent.name: path for path in made.rglob("*key.pem")}
    assert keys.keys() == {"authority", "controller", "a", "b"}
    assert len({path.read_bytes() for path in keys.values()}) == 4
    assert all(path.stat().st_mode & 0o077 == 0 for path in made.rglob("*"))
    assert {path.name for path in (made / "a").iterdir()} == {AUTHORITY, CERTIFICATE, KEY}


def test_the_command_adds_hosts_with_the_same_authority_and_overwrites_nothing(made, capsys):
    before = {path: path.read_bytes() for path in made.rglob("*.pem")}
    assert main(["certificates", "--to", str(made), "c,10.0.0.4"]) == 0
    assert "copy it to c" in capsys.readouterr().out
    check_files(made / "c", "tls://10.0.0.4:4444")
    assert (made / "c" / AUTHORITY).read_bytes() == (made / "a" / AUTHORITY).read_bytes()
    assert main(["certificates", "--to", str(made), "d", "a"]) == 2
    assert "exists already, and is not overwritten" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before and not (made / "d").exists()


@pytest.mark.parametrize(
    "hosts", [["a b"], ["../a"], ["controller"], ["a", "a"], [""], ["a,"], ["a..b"], ["a" * 64], ["999.1.1.1"]]
)
def test_what_is_no_name_of_a_host_is_refused(tmp_path, hosts):
    with pytest.raises(ConfigError, match="a host is called|give each a name of its own"):
        make_certificates(tmp_path / "made", hosts, None, days=1)
    assert not (tmp_path / "made").exists()


def let_expire(folder: Path) -> None:
    make_certificates(folder.parent / "past", ["a"], None, days=-0.5)
    for file in (folder.parent / "past" / "authority").iterdir():
        shutil.copy(file, folder)


def encrypt_key(folder: Path) -> None:
    key = load_pem_private_key((folder / AUTHORITY_KEY).read_bytes(), None)
    (folder / AUTHORITY_KEY).write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"moon"))
    )


def take_another_key(folder: Path) -> None:
    make_certificates(folder.parent / "other", ["a"], None, days=1)
    shutil.copy(folder.parent / "other" / "authority" / AUTHORITY_KEY, folder)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [(let_expire, "has expired"), (encrypt_key, "encrypted"), (take_another_key, "does not belong to its authority")],
)
def test_an_authority_that_can_make_no_good_certificate_makes_none(made, capsys, spoil, why):
    spoil(made / "authority")
    assert main(["certificates", "--to", str(made), "c"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("zorplex-rl: --to is") and said.count("\n") == 1 and why in said
    assert not (made / "c").exists()


def test_a_file_with_several_authorities_admits_the_certificates_of_each(made, use, tmp_path):
    make_certificates(tmp_path / "others", ["a,127.0.0.1"], None, days=1)
    both = (tmp_path / "others" / "a" / AUTHORITY).read_bytes() + (made / "a" / AUTHORITY).read_bytes()
    for folder in (made / "a", tmp_path / "others" / "a"):
        (folder / AUTHORITY).write_bytes(both)
        check_files(folder, HERE)
    listener = socket.create_server(("127.0.0.1", 0))
    use(made / "a")
    threading.Thread(target=answer_with, args=(server_context(), listener), daemon=True).start()
    use(tmp_path / "others" / "a")
    ask(f"tls://127.0.0.1:{listener.getsockname()[1]}")


def test_an_address_is_the_same_however_it_is_written(tmp_path):
    make_certificates(tmp_path / "made", ["a,0:0::1"], None, days=1)
    for address in ("tls://[::1]:4444", "tls://[0:0:0::1]:4444", "tls://A:4444"):
        check_files(tmp_path / "made" / "a", address)


def lose_key(folder: Path) -> None:
    (folder / KEY).unlink()


def show_key(folder: Path) -> None:
    (folder / KEY).chmod(0o644)


def damage_certificate(folder: Path) -> None:
    (folder / CERTIFICATE).write_text("-----BEGIN CERTIFICATE-----\nmoon\n-----END CERTIFICATE-----\n")


def take_key_of_another(folder: Path) -> None:
    shutil.copy(folder.parent / "b" / KEY, folder / KEY)


def take_another_authority(folder: Path) -> None:
    make_certificates(folder.parent / "other", ["a"], None, days=1)
    shutil.copy(folder.parent / "other" / "a" / AUTHORITY, folder / AUTHORITY)


@pytest.mark.parametrize(
    "spoil",
    [
        shutil.rmtree,
        lose_key,
        show_key,
        damage_certificate,
        take_key_of_another,
        take_another_authority,
    ],
)
def test_files_that_cannot_work_are_refused_in_one_sentence(made, spoil, wording):
    spoil(made / "a")
    with pytest.raises(ConfigError) as refused:
        check_files(made / "a", HERE)
    assert "\n" not in str(refused.value)
    # In brackets stands what the library for certificates says.
    wording(re.sub(r"damaged \(.*\)", "damaged (…)", str(refused.value)), spoil.__name__)


def test_a_certificate_is_refused_when_it_has_expired_before_it_is_valid_and_under_another_name(tmp_path, monkeypatch):
    make_certificates(tmp_path / "past", ["a,127.0.0.1"], None, days=-0.5)
    with pytest.raises(ConfigError, match="has expired .*; make new certificates"):
        check_files(tmp_path / "past" / "a", HERE)
    monkeypatch.setattr(certificates, "CLOCKS_DIFFER", -certificates.CLOCKS_DIFFER)
    make_certificates(tmp_path / "future", ["a,127.0.0.1"], None, days=1)
    with pytest.raises(ConfigError, match="is not valid yet .*; look at this machine's clock"):
        check_files(tmp_path / "future" / "a", HERE)
    monkeypatch.undo()
    make_certificates(tmp_path / "made", ["a,10.0.0.2"], None, days=1)
    with pytest.raises(ConfigError, match="is for a, 10.0.0.2, and not for 127.0.0.1"):
        check_files(tmp_path / "made" / "a", HERE)


@pytest.mark.parametrize(
    "settings",
    [
        {"hosts": "attach:tls://10.0.0.2:4444"},
        {"hosts": "attach:tcp://10.0.0.2:4444"},
        {"hosts": "attach:tcp://10.0.0.2:4444", "tls": "x"},
        {"hosts": "attach:tls://10.0.0.2:4444", "tls": "x", "insecure": True},
        {"hosts": "attach:tls://10.0.0.2:4444,tcp://10.0.0.3:4444"},
        {"hosts": "attach:tls://10.0.0.2:4444", "tls": "x", "listen": "tcp://10.0.0.1:5"},
        {"hosts": "slurm:2"},
        {"hosts": "slurm:2", "tls": "x", "insecure": True},
        {"hosts": "kubernetes:2", "image": "x"},
    ],
)
def test_other_machines_need_tls_or_a_permission(settings, wording, monkeypatch):
    monkeypatch.delenv(tls.TLS, raising=False)
    with pytest.raises(ConfigError) as refused:
        check_cluster(Config().changed(**settings))
    wording(refused.value, str(settings))


def test_this_machine_needs_neither_and_the_environment_names_the_files(monkeypatch):
    for hosts in ("this", "processes:2", "attach:tcp://127.0.0.1:4444,tcp://localhost:4445"):
        check_cluster(Config().changed(hosts=hosts))
    monkeypatch.setenv(tls.TLS, "/somewhere")
    with pytest.raises(ConfigError, match="--tls is '/somewhere', where authority.pem cannot be read"):
        check_cluster(Config().changed(hosts="attach:tls://127.0.0.1:4444"))


def test_a_controller_is_told_within_seconds_why_a_host_does_not_take_it(made, use, tmp_path):
    make_certificates(tmp_path / "others", ["a,127.0.0.1"], None, days=1)
    use(made / "a")
    good, plain, port_of = server_context(), socket.create_server(("127.0.0.1", 0)), []
    use(made / "b")
    misnamed = server_context()
    for context in (good, misnamed):
        listener = socket.create_server(("127.0.0.1", 0))
        port_of.append(listener.getsockname()[1])
        threading.Thread(target=answer_with, args=(context, listener), daemon=True).start()
    threading.Thread(target=answer_with, args=(None, plain), daemon=True).start()

    def said(port: int) -> str:
        with pytest.raises(HostError) as refused:
            ask(f"tls://127.0.0.1:{port}")
        return str(refused.value)

    use(made / "controller")
    ask(f"tls://127.0.0.1:{port_of[0]}")
    assert "does not speak TLS" in said(plain.getsockname()[1])
    assert "the certificate of host" in said(port_of[1]) and "127.0.0.1" in said(port_of[1])
    use(tmp_path / "others" / "controller")
    assert "is not accepted here" in said(port_of[0])
    # It knows the host's authority, but comes with a certificate of another one.
    both = tmp_path / "both"
    shutil.copytree(tmp_path / "others" / "controller", both)
    shutil.copy(made / "a" / AUTHORITY, both / AUTHORITY)
    use(both)
    assert "does not accept the certificate of this machine" in said(port_of[0])


def test_a_hosts_lifeline_goes_through_tls_and_is_held_only_with_a_certificate(made, use, tmp_path):
    make_certificates(tmp_path / "others", ["a"], None, days=1)

    async def main() -> None:
        use(made / "a")
        there = await lifeline.serve("127.0.0.1", server_context())
        use(made / "controller")
        held = asyncio.create_task(lifeline.hold(there, client_context()))
        use(tmp_path / "others" / "controller")
        with pytest.raises(ssl.SSLCertVerificationError):
            await lifeline.hold(there, client_context())
        await asyncio.wait([held], timeout=3 * lifeline.BYTE_SECONDS)
        assert not held.done()
        held.cancel()

    asyncio.run(main())


def test_a_lifeline_takes_no_more_strangers_with_tls_than_without_and_still_its_controller(made, use):
    """They connect and say nothing, so no handshake ever begins."""

    async def main() -> None:
        use(made / "a")
        there, before = await lifeline.serve("127.0.0.1", server_context()), len(os.listdir("/proc/self/fd"))
        strangers = [await asyncio.open_connection(there.host, there.port) for _ in range(200)]
        await asyncio.sleep(0.2)
        assert len(os.listdir("/proc/self/fd")) - before <= 200 + lifeline.MOST_STRANGERS
        use(made / "controller")
        held = asyncio.create_task(lifeline.hold(there, client_context()))
        await asyncio.wait([held], timeout=3 * lifeline.BYTE_SECONDS)
        assert not held.done()
        for _, writer in strangers:
            writer.close()
        held.cancel()

    asyncio.run(main())


def answer_with(context: ssl.SSLContext | None, listener: socket.socket) -> None:
    """Greet whoever connects, and then say nothing, as Monarch does; without ``context`` in words
    that are not TLS."""
    kept = []
    while True:
        accepted, _ = listener.accept()
        try:
            if context is None:
                accepted.sendall(b"hello\r\n" * 100)
            kept.append(context.wrap_socket(accepted, server_side=True) if context else accepted)
        except OSError:
            accepted.close()

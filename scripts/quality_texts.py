#!/usr/bin/env python3
"""Hay for `farsight eval`: public-domain texts out of Debian packages (bookworm), as plain text files.

    quality_texts.py FOLDER             FOLDER/{gospels,jargon,devil,copyright}.txt, 0.4 MB each
    quality_texts.py FOLDER DATA        FOLDER/{prose,code}.txt: documents that this project's models never saw, out of
                                        the held_out.xz, tokenizer.json and data.json of training/prepare_data.py

Four kinds of English, so that a score is not that of one book: the four gospels and Acts in the King James version
(bible-kjv-text), the Jargon File (jargon-text), Ambrose Bierce's Devil's Dictionary (dict-devil) and Linus Walleij's
"Copyright Does Not Exist" (cfi-en). The last three are in part training text of this project's own models, whose hay is
the second command's.
"""
import gzip
import json
import lzma
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "training"))
from text_cleaning import clean_html  # noqa: E402

PACKAGES = ("bible-kjv", "bible-kjv-text", "jargon-text", "dict-devil", "cfi-en")
LONGEST_HELD = 1_500_000
LONGEST = 400_000  # characters of one text: tokenizing the hay should take a second, not ten


def unpacked(work):
    subprocess.run(["apt-get", "download", "-qq", *PACKAGES], cwd=work, check=True)
    for archive in work.glob("*.deb"):
        subprocess.run(["dpkg", "-x", archive, work], check=True)


def gospels(work):
    data = work / "usr/lib"
    out = subprocess.run([work / "usr/bin/bible", "-d", "bible.data", "-f", "Mt1:1-Ac28:31"], cwd=data, check=True,
                         stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout
    return re.sub(r"(?m)^\S+:\d+ ", "", out)


def jargon(work):
    text = gzip.decompress((work / "usr/share/doc/jargon-text/jargon.txt.gz").read_bytes()).decode()
    return re.sub("[\u2500-\u257f]+", "", text)[len(text) // 4:]  # from the entries on, without the frames of tables


def devil(work):
    return gzip.decompress((work / "usr/share/dictd/devil.dict.dz").read_bytes()).decode(errors="ignore")


def no_copyright(work):
    pages = work / "usr/share/doc/cfi-en/html"
    names = ["preface.htm"] + [f"ch{i}web.htm" for i in range(1, 18)]
    text = "\n".join(clean_html((pages / n).read_text(errors="ignore")) for n in names if (pages / n).exists())
    return re.sub(r"[ \t]{2,}", " ", re.sub(r"(?m)^[ \t]+", "", text))


def bytes_of_letters():
    """The byte behind every letter of a byte-level vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [b for b in range(256) if b not in plain]
    return {**{chr(b): b for b in plain}, **{chr(256 + i): b for i, b in enumerate(other)}}


def held_out(data):
    """Held-out documents of a kind in an order of chance, at most LONGEST_HELD characters, whole ones but for the last."""
    vocabulary = json.loads((data / "tokenizer.json").read_text())["model"]["vocab"]
    letters = bytes_of_letters()
    text_of = {i: bytes(letters[c] for c in t) if all(c in letters for c in t) else b"" for t, i in vocabulary.items()}
    raw = lzma.decompress((data / "held_out.xz").read_bytes())
    tokens = struct.unpack(f"<{len(raw) // 2}H", raw)
    for kind in ("prose", "code"):
        documents = []
        for span in json.loads((data / "data.json").read_text())["domains"]:
            if span["kind"] != kind:
                continue
            document = []
            for token in tokens[span["begin"]:span["end"]]:
                if token == 0:
                    documents.append(b"".join(document).decode(errors="ignore"))
                    document = []
                else:
                    document.append(text_of.get(token, b""))
        random.Random(1).shuffle(documents)
        yield kind, "\n\n".join(documents)[:LONGEST_HELD]


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    if len(sys.argv) > 2:
        for kind, text in held_out(pathlib.Path(sys.argv[2])):
            (folder / f"{kind}.txt").write_text(text)
            print(f"{kind}.txt {len(text)} characters")
        return
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        unpacked(work)
        for title, read in (("gospels", gospels), ("jargon", jargon), ("devil", devil), ("copyright", no_copyright)):
            text = re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t\r]+\n", "\n", read(work)))[:LONGEST]
            (folder / f"{title}.txt").write_text(text)
            print(f"{title}.txt {len(text)} characters")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The command line as a user meets it: what goes to which stream, exit codes, and one sentence for every mistake.

usage: cli_test.py FARSIGHT MAKE_TINY_MODEL
"""
import html
import json
import os
import pathlib
import random
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

FARSIGHT, MAKE_TINY_MODEL = sys.argv[1:3]


class Cli(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.dir = pathlib.Path(cls.folder.name)
        cls.model = str(cls.dir / "tiny.gguf")
        subprocess.run([MAKE_TINY_MODEL, "llama", cls.model], check=True)
        (cls.dir / "text.txt").write_text("All work and no play. " * 40)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_cli(self, *args, text=None, env=None):
        return subprocess.run([FARSIGHT, *args], input=text, capture_output=True, encoding="utf-8", errors="replace",
                              cwd=self.dir, env={**os.environ, **(env or {})}, timeout=60)

    def refused(self, *args, code=1, words=()):
        p = self.run_cli(*args)
        self.assertEqual(p.returncode, code, p.stderr)
        self.assertEqual(p.stdout, "")
        self.assertEqual(len(p.stderr.strip().splitlines()), 1, p.stderr)
        self.assertTrue(p.stderr.startswith("farsight: "), p.stderr)
        for word in words:
            self.assertIn(word, p.stderr)

    def start(self, *args):
        """The program, once it minds Ctrl-C."""
        p = subprocess.Popen([FARSIGHT, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             cwd=self.dir, encoding="utf-8", errors="replace")
        for _ in range(1000):
            caught = [line for line in pathlib.Path(f"/proc/{p.pid}/status").read_text().splitlines()
                      if line.startswith("SigCgt")]
            if int(caught[0].split()[1], 16) >> (signal.SIGINT - 1) & 1:
                break
            time.sleep(0.01)
        return p

    def test_answer_on_stdout_summary_on_stderr(self):
        p = self.run_cli("run", "-m", self.model, "-p", "hello", "-n", "5", "--ignore-eos")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertIn("tok/s", p.stderr)
        self.assertEqual(len(p.stderr.strip().splitlines()), 1)
        self.assertNotIn("tok/s", p.stdout)

    def test_a_chat_template_that_cannot_be_used_is_told(self):
        key, template = b"tokenizer.chat_template", b"{% import 'os' as x %}"
        size = 20 + len(key) + len(template)
        template += b" " * (-size % 32)  # keeps the tensors aligned
        entry = struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(template)) + template
        data = pathlib.Path(self.model).read_bytes()
        magic, version, tensors, values = struct.unpack_from("<4sIQQ", data)
        path = self.dir / "template.gguf"
        path.write_bytes(struct.pack("<4sIQQ", magic, version, tensors, values + 1) + entry + data[24:])
        p = self.run_cli("run", "-m", str(path), "-p", "hello", "-n", "2", "--ignore-eos")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertIn("chat template cannot be used (", p.stderr.splitlines()[0])
        self.assertIn("cannot be used: ", self.run_cli("inspect", "-m", str(path)).stdout)
        self.refused("run", "-m", str(path), "-p", "x", "--chat", words=("chat template", "import"))

    def test_what_a_file_says_steers_no_terminal_and_stays_one_line(self):
        text = lambda s: struct.pack("<Q", len(s)) + s
        for name, words in ((b"evil\x1b[31m\nfarsight: two\xc2\x9b", ("evil?[31m?farsight: two??",)),
                            (b"x" * 100000, ("xx ... xx", "is not supported"))):
            value = text(b"general.architecture") + struct.pack("<I", 8) + text(name)
            (self.dir / "evil.gguf").write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + value)
            self.refused("inspect", "-m", "evil.gguf", words=words)
            self.assertLess(len(self.run_cli("inspect", "-m", "evil.gguf").stderr), 1100)

    def test_json_has_the_promised_keys(self):
        p = self.run_cli("run", "-m", self.model, "-f", "text.txt", "-p", "so", "-n", "7", "--ignore-eos", "--json",
                         "--attention", "sketch", "--top-k-blocks", "4", "--local-window", "64", "--logprobs", "2")
        self.assertEqual(p.returncode, 0, p.stderr)
        j = json.loads(p.stdout)
        for key in ("text", "token_ids", "prompt_tokens", "generated_tokens", "finish_reason", "prefill_seconds",
                    "decode_seconds", "kv_bytes", "blocks_held", "blocks_read", "read_tokens",
                    "select_seconds", "peak_memory_bytes"):
            self.assertIn(key, j)
        self.assertEqual(j["prompt_tokens"], 22 * 40 + 2 + 2)
        self.assertEqual(j["generated_tokens"], 7)
        self.assertEqual(j["finish_reason"], "length")
        self.assertLess(j["blocks_read"], j["blocks_held"])
        self.assertEqual(len(j["logprobs"]), 7)
        self.assertEqual(len(j["logprobs"][0]["top"]), 2)

    def test_same_seed_same_text_and_standard_input(self):
        args = ("run", "-m", self.model, "-f", "-", "-n", "20", "--ignore-eos", "--temp", "1", "--seed", "3")
        a = self.run_cli(*args, text="some words")
        b = self.run_cli(*args, text="some words")
        self.assertEqual(a.returncode, 0, a.stderr)
        self.assertEqual(a.stdout, b.stdout)

    def test_keys_and_values_in_a_file_change_nothing(self):
        args = ("run", "-m", self.model, "-f", "text.txt", "-p", "once again " * 200, "-n", "20", "--ignore-eos", "--json",
                "--attention", "sketch", "--top-k-blocks", "4", "--local-window", "64", "--dense-layers", "0")
        resident = json.loads(self.run_cli(*args).stdout)
        p = self.run_cli(*args, "--kv-memory", "600K", "--kv-file", "kv")
        self.assertEqual(p.returncode, 0, p.stderr)
        tiered = json.loads(p.stdout)
        self.assertEqual(tiered["token_ids"], resident["token_ids"])
        self.assertGreater(tiered["kv_tiers"]["total"]["missed"], 0)
        self.assertEqual(len(tiered["kv_tiers"]["layers"]), 3)
        self.assertFalse((self.dir / "kv").exists())
        p = self.run_cli("run", "-m", self.model, "-p", "a", "-n", "3", "--ignore-eos", "--kv-memory", "1M")
        self.assertEqual(len(p.stderr.strip().splitlines()), 1, p.stderr)
        self.assertIn("in memory", p.stderr)

    def test_a_session_goes_on_in_another_process(self):
        args = ("run", "-m", self.model, "-n", "10", "--ignore-eos", "--json", "--session", "s.kv", "-f", "text.txt")
        first = json.loads(self.run_cli(*args).stdout)
        p = self.run_cli(*args, "-p", "and then?")
        self.assertEqual(p.returncode, 0, p.stderr)
        second = json.loads(p.stdout)
        self.assertEqual(second["cached_tokens"], first["prompt_tokens"])
        alone = json.loads(self.run_cli(*(a for a in args if a not in ("--session", "s.kv")), "-p", "and then?").stdout)
        self.assertEqual(second["token_ids"], alone["token_ids"])
        p = self.run_cli("session", "inspect", "s.kv", "--json")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertEqual(json.loads(p.stdout)["tokens"], second["prompt_tokens"] + 9)
        p = self.run_cli("session", "verify", "s.kv")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertIn("0 broken", p.stdout)
        data = bytearray((self.dir / "s.kv").read_bytes())
        for at in range(3 * 4096 + 100, len(data), 4096):
            data[at] ^= 1
        (self.dir / "broken.kv").write_bytes(data)
        self.assertEqual(self.run_cli("session", "verify", "broken.kv").returncode, 1)
        self.refused("session", "inspect", "text.txt", words=("session",))
        self.refused("session", "verify", "absent.kv", words=("absent.kv",))
        self.refused(*args, "--block-size", "32", words=("s.kv", "32"))

    def test_a_session_whose_writer_is_killed_is_as_before_or_as_after(self):
        args = ["run", "-m", self.model, "-n", "10", "--ignore-eos", "--session", "k.kv", "-f", "text.txt", "-p"]
        took = time.monotonic()
        self.assertEqual(self.run_cli(*args, "a").returncode, 0)
        took = time.monotonic() - took
        tokens = lambda: json.loads(self.run_cli("session", "inspect", "k.kv", "--json").stdout)["tokens"]
        lengths = {question: None for question in ("a", "and then, at last?" * 9)}
        for question in lengths:
            self.assertEqual(self.run_cli(*args, question).returncode, 0)
            lengths[question] = tokens()
        rng = random.Random(1)
        for kill in range(int(os.environ.get("FARSIGHT_TEST_KILLS", "8"))):
            before = tokens()
            question = rng.choice(list(lengths))
            p = subprocess.Popen([FARSIGHT, *args, question], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                 cwd=self.dir)
            time.sleep(took * (0.3 + 0.8 * rng.random()))
            p.kill()
            p.wait()
            self.assertIn(tokens(), (before, lengths[question]), kill)
            p = self.run_cli("session", "verify", "k.kv")
            self.assertEqual((p.returncode, "0 broken" in p.stdout), (0, True), p.stderr)

    def test_a_full_disk_is_told_and_leaves_a_session_as_it_was(self):
        args = ["run", "-m", self.model, "-n", "5", "--ignore-eos", "-f", "text.txt"]
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (640 << 10, 640 << 10))
        self.assertEqual(self.run_cli("run", "-m", self.model, "-n", "5", "-p", "a", "--session", "f.kv").returncode, 0)
        before = self.run_cli("session", "inspect", "f.kv").stdout
        for place in (["--session", "f.kv"], ["--kv-memory", "600K", "--kv-file", "kv"]):
            p = subprocess.run([FARSIGHT, *args, *place, "-p", "once again " * 250], capture_output=True, text=True,
                               cwd=self.dir, preexec_fn=limit, timeout=60)
            self.assertEqual(p.returncode, 1, p.stderr)
            self.assertIn("File too large", p.stderr)
        self.assertEqual(self.run_cli("session", "inspect", "f.kv").stdout, before)
        self.assertIn("0 broken", self.run_cli("session", "verify", "f.kv").stdout)

    def test_models_are_found_by_name(self):
        p = self.run_cli("inspect", "-m", "tiny", env={"FARSIGHT_MODELS": str(self.dir)})
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertIn("llama", p.stdout)
        self.refused("inspect", "-m", "no-such-model", words=("no-such-model", "models"))
        self.refused("inspect", "-m", "/no/such/file.gguf", words=("/no/such/file.gguf",))

    def test_help_shows_the_defaults(self):
        for command, words in (("run", ("INT=24", "FLOAT=0", "TEXT=f16", "INT=512")), ("bench", ("512", "128", "md")),
                               ("eval", ("TEXT=md",))):
            p = self.run_cli(command, "--help")
            self.assertEqual((p.returncode, p.stderr), (0, ""))
            for word in words:
                self.assertIn(word, p.stdout)

    def test_every_mistake_gets_one_sentence(self):
        m = ("-m", self.model)
        self.refused("run", *m, code=2, words=("nothing to read",))
        self.refused("run", *m, "-f", "absent.txt", words=("absent.txt",))
        self.refused("run", *m, "-f", "text.txt", "-c", "100", words=("880", "100"))
        self.refused("run", *m, "-p", "x", "--chat", words=("chat template",))
        self.refused("run", *m, "-p", "x", "--temp", "-1", code=2, words=("temperature",))
        self.refused("run", *m, "-p", "x", "--temp", "hot", code=2, words=("number", "--temp", "hot"))
        for flag, value in (("-n", "-2"), ("-n", "99999999999999999999"), ("-n", "1.5"), ("-c", "1e3"), ("-s", "-1"),
                            ("-s", "18446744073709551616"), ("--prefill-chunk", "0"), ("--draft-max", "65"),
                            ("--draft-group", "0")):
            self.refused("run", *m, "-p", "x", flag, value, code=2, words=("whole number", value))
        self.refused("bench", *m, "-p", "-10", code=2, words=("--n-prompt", "-10"))
        self.refused("run", *m, "-p", "x", "--attention", "psychic", code=2, words=("psychic", "sketch"))
        self.refused("run", *m, "-p", "x", "--block-size", "65", code=2, words=("65",))
        self.refused("run", *m, "-p", "x", "--sparse-phase", "never", code=2, words=("never",))
        self.refused("run", *m, "-p", "x", "--kv-type", "q9", code=2, words=("q9",))
        self.refused("run", *m, "-p", "x", "--kv-memory", "much", code=2, words=("much", "64M"))
        for size, bytes_ in (("4K", "4096"), ("1K", "1024")):
            self.refused("run", *m, "-p", "x", "--kv-memory", size, words=(bytes_ + " bytes", "at least"))
        self.refused("run", *m, "-p", "x", "--kv-file", "kv", code=2, words=("--kv-memory",))
        self.refused("run", *m, "-p", "x", "--kv-memory", "1M", "--kv-file", "/no/such/kv", words=("/no/such",))
        self.refused("run", *m, "-p", "x", "--isa", "mmx", words=("mmx",))
        self.refused("run", "-p", "x", code=2, words=("--model",))
        self.refused("run", *m, "--no-such-flag", code=2, words=("no-such-flag",))
        self.refused("fly", code=2)
        self.refused(code=2, words=("run", "chat", "--help"))
        self.refused("eval", *m, "guess", "-f", "text.txt", code=2, words=("guess",))
        self.refused("bench", *m, "-o", "xml", code=2, words=("xml",))
        for command in (("bench",), ("eval", "needle")):
            for flag, value in (("--attention", "dense,psychic"), ("--sparse-phase", "never"), ("--kv-type", "q9")):
                self.refused(*command, "-m", "absent", flag, value, code=2, words=(value.split(",")[-1],))
        self.refused("bench", *m, "--kv-memory", "all,much", code=2, words=("much",))
        self.refused("eval", "needle", *m, "-o", "xml", code=2, words=("xml",))
        self.refused("eval", "needle", *m, "--form", "poem", code=2, words=("poem",))
        self.refused("trace-view", "text.txt", words=("trace",))
        self.refused("run", *m, "-p", "x", "--trace", "no/such/t.json", words=("no/such/t.json",))
        self.refused("run", "-m", "absent", "-p", "x", "--trace", ".", words=("'.'", "directory"))

    def test_output_that_cannot_be_written_is_an_error(self):
        for args in (("run", "-p", "x", "-n", "3"), ("run", "-p", "x", "-n", "3", "--json"), ("inspect",),
                     ("tokenize", "-p", "x"), ("tokenize", "-p", "word " * 9000), ("inspect", "--tensors"), ("bench", "-p", "16", "-n", "0", "-r", "1")):
            with open("/dev/full", "wb") as full:
                p = subprocess.run([FARSIGHT, args[0], "-m", self.model, *args[1:]], stdout=full,
                                   stderr=subprocess.PIPE, cwd=self.dir, encoding="utf-8", timeout=60)
            self.assertEqual(p.returncode, 1, p.stderr)
            self.assertIn("could not be written", p.stderr)

    def test_streams_that_are_closed_or_full_end_nothing_badly(self):
        run = (FARSIGHT, "run", "-m", self.model, "-p", "x", "-n", "3", "--ignore-eos")
        wanted = subprocess.run(run, capture_output=True, cwd=self.dir).stdout
        shell = lambda redirection, *args: subprocess.run(
            ["sh", "-c", f'"$@" {redirection}', "sh", *(args or run)], capture_output=True, cwd=self.dir, timeout=60)
        for redirection in ("2>&-", "2>/dev/full"):
            p = shell(redirection)
            self.assertEqual((p.returncode, p.stdout), (0, wanted))
            self.assertEqual(shell(redirection, FARSIGHT, "run", "-m", "absent", "-p", "x").returncode, 1)
        p = shell(">&-", *run, "--session", "closed.kv")
        self.assertEqual(p.returncode, 1)
        self.assertIn(b"could not be written", p.stderr)
        self.assertIn("0 broken", self.run_cli("session", "verify", "closed.kv").stdout)
        p = shell("<&-", *run[:4], "-f", "-")
        self.assertEqual(p.returncode, 1)
        self.assertIn(b"cannot read standard input", p.stderr)

    def test_fewer_threads_where_the_system_refuses_more(self):
        args = ("run", "-m", self.model, "-p", "x", "-n", "9", "--ignore-eos", "--json")
        wanted = json.loads(self.run_cli(*args).stdout)

        def limit():  # stacks of a gigabyte, of which two fit
            resource.setrlimit(resource.RLIMIT_STACK, (1 << 30, resource.getrlimit(resource.RLIMIT_STACK)[1]))
            resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))

        p = subprocess.run([FARSIGHT, *args, "-t", "16"], capture_output=True, cwd=self.dir, preexec_fn=limit, timeout=60)
        self.assertEqual(p.returncode, 0, p.stderr)
        got = json.loads(p.stdout)
        self.assertLess(got["threads"], 16)
        self.assertEqual(got["token_ids"], wanted["token_ids"])

    def test_damaged_models_are_refused(self):
        good = pathlib.Path(self.model).read_bytes()
        for name, data in (("cut.gguf", good[:-4096]), ("cut1.gguf", good[:-1]), ("head.gguf", good[:100]),
                           ("empty.gguf", b""), ("text.gguf", b"hello")):
            (self.dir / name).write_bytes(data)
            self.refused("run", "-m", name, "-p", "x", words=(name,))

    def test_trace_becomes_a_page_of_its_own(self):
        p = self.run_cli("run", "-m", self.model, "-f", "text.txt", "-n", "4", "--ignore-eos", "--attention", "infllm2",
                         "--top-k-blocks", "4", "--local-window", "64", "--trace", "t.json")
        self.assertEqual(p.returncode, 0, p.stderr)
        trace = json.loads((self.dir / "t.json").read_text())
        self.assertEqual(len(trace["steps"]), 3)
        self.assertEqual(len(trace["steps"][0]["layers"]), 3)
        p = self.run_cli("trace-view", "t.json")
        self.assertEqual(p.returncode, 0, p.stderr)
        page = (self.dir / p.stdout.strip()).read_text()
        self.assertIn("All work and no play", page)
        self.assertNotIn("http", page)
        answer = page[page.index('<div id="answer">'):page.index("</div>", page.index('<div id="answer">'))]
        self.assertEqual(html.unescape(re.sub("<[^>]*>", "", answer)), "".join(trace["generated"]))
        for name, damaged in (("kind", {"format": 3}), ("bare", {"format": "farsight-trace"}),
                              ("blocks", {**trace, "blocks": 7}), ("words", {**trace, "generated": [1, 2, 3, 4]}),
                              ("heads", {**trace, "steps": [{"visible_blocks": 1, "layers": [{"heads": [["x"]]}]}]})):
            (self.dir / "damaged.json").write_text(json.dumps(damaged))
            self.refused("trace-view", "damaged.json", words=("damaged.json",))
        trace["steps"] = [{"visible_blocks": 1 << 60, "layers": []}]
        (self.dir / "long.json").write_text(json.dumps(trace))
        self.assertEqual(self.run_cli("trace-view", "long.json").returncode, 0)

    def test_bench_and_eval_print_numbers(self):
        p = self.run_cli("bench", "-m", self.model, "-p", "64", "-n", "8", "-d", "0,128", "-r", "1", "-o", "json",
                         "--attention", "dense,sketch", "--top-k-blocks", "2", "--local-window", "64")
        self.assertEqual(p.returncode, 0, p.stderr)
        rows = json.loads(p.stdout)
        self.assertEqual(len(rows), 8)
        for key in ("n_prompt", "n_gen", "n_depth", "n_threads", "avg_ts", "stddev_ts", "attention"):
            self.assertIn(key, rows[0])
        p = self.run_cli("bench", "-m", self.model, "-p", "0", "-n", "8", "-d", "300", "-r", "1", "-o", "json",
                         "--attention", "dense,infinigen", "--kv-memory", "all,500K", "--lookahead", "on,off",
                         "-f", "text.txt")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertEqual([r["kv_memory"] > 0 for r in json.loads(p.stdout)], [False, True, True] * 2)
        self.refused("bench", "-m", self.model, "-f", "nowhere.txt", words=("nowhere.txt",))
        p = self.run_cli("eval", "compare", "-m", self.model, "-f", "text.txt", "--prefix", "500", "--tokens", "50",
                         "--attention", "sketch", "--top-k-blocks", "100", "--dense-layers", "0", "--json")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertEqual(json.loads(p.stdout)[0]["kl_mean"], 0, "a budget of all blocks is dense")
        p = self.run_cli("eval", "perplexity", "-m", self.model, "-f", "text.txt", "--tokens", "200", "--json")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertGreater(json.loads(p.stdout)[0]["perplexity"], 1)

    FORECAST = ("--text", "text.txt", "--seq-len", "128", "--steps", "60", "--rows", "16", "--val-sequences", "1",
                "--block-size", "16", "--top-k-blocks", "4", "--local-window", "16", "--eval-every", "0")

    def test_forecast_training_goes_on_where_it_stopped(self):
        p = self.run_cli("train-forecast", "-m", self.model, *self.FORECAST, "-o", "whole.safetensors")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertIn("blocks found", p.stdout)
        self.assertIn("step 60/60", p.stderr)
        self.assertFalse((self.dir / "whole.safetensors.state").exists())
        whole = (self.dir / "whole.safetensors").read_bytes()
        self.assertIn(b"model.layers.0.self_attn.q_curr_proj.weight", whole)
        self.assertIn(b"model.layers.1.self_attn.q_future_proj.weight", whole)

        stopped = subprocess.Popen([FARSIGHT, "train-forecast", "-m", self.model, *self.FORECAST, "-o",
                                    "parts.safetensors", "-t", "1"], stderr=subprocess.PIPE, stdout=subprocess.PIPE,
                                   cwd=self.dir, encoding="utf-8")
        for line in stopped.stderr:
            if line.startswith("step 20/"):
                break
        stopped.send_signal(signal.SIGINT)
        _, rest = stopped.communicate(timeout=60)
        self.assertEqual(stopped.returncode, 130, rest)
        self.assertIn("--resume", rest)
        self.assertFalse((self.dir / "parts.safetensors").exists())
        p = self.run_cli("train-forecast", "-m", self.model, *self.FORECAST, "-o", "parts.safetensors", "--resume",
                         "--json")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertEqual(len(json.loads(p.stdout)["layers"]), 3)
        self.assertEqual((self.dir / "parts.safetensors").read_bytes(), whole)

    def test_a_forecast_is_fitted_and_used(self):
        fit = ("--heads", "query", "--init", "fit", "--fit-sequences", "2", "--sketch-bits", "4", "--json")
        p = self.run_cli("train-forecast", "-m", self.model, *self.FORECAST[:4], *self.FORECAST[6:], "--steps", "0",
                         *fit, "-o", "fit.safetensors")
        self.assertEqual(p.returncode, 0, p.stderr)
        layers = json.loads(p.stdout)["layers"]
        self.assertEqual(layers[2]["recall"], layers[2]["recall_before"], "the fit is the result")
        self.assertGreater(layers[2]["mass_recall"], 0)
        p = self.run_cli("eval", "needle", "-m", self.model, "--attention", "dense,stale,sparda", "--forecast",
                         "fit.safetensors", "--block-size", "16", "--top-k-blocks", "4", "--local-window", "16",
                         "--form", "completion", "--lengths", "300", "--at", "20,90", "--samples", "1", "--json")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertEqual([(r["attention"], r["depth"]) for r in json.loads(p.stdout)],
                         [("dense", 20), ("stale", 20), ("sparda", 20), ("dense", 90), ("stale", 90), ("sparda", 90)])

    def test_forecast_training_refuses_in_one_sentence(self):
        train = ("train-forecast", "-m", self.model, "--text", "text.txt", "-o", "x.safetensors")
        self.refused(*train, "--lr", "-1", code=2, words=["--lr"])
        self.refused(*train, "--init", "dice", code=2, words=["dice"])
        self.refused(*train, "--heads", "hydra", code=2, words=["hydra"])
        self.refused(*train, "--steps", "0", code=2, words=["--steps"])
        self.refused(*train, "--seq-len", "256", words=["--seq-len must be above"])
        self.refused(*train, words=["0 sequences of 4096 tokens"])
        self.refused(*train, *self.FORECAST[2:], "--teacher", "parrot", words=["parrot"])
        self.refused(*train, *self.FORECAST[2:], "--attention", "dense", words=["dense"])
        self.refused(*train, *self.FORECAST[2:], "--resume", words=["x.safetensors.state"])
        self.refused(*train[:5], "-o", "no/such/x", "--resume", *self.FORECAST[2:], words=["no/such"])

    def test_interrupt_ends_with_130(self):
        p = subprocess.Popen([FARSIGHT, "run", "-m", self.model, "-p", "x", "--ignore-eos"], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, cwd=self.dir)
        p.stdout.read(1)  # it has begun to write
        p.send_signal(signal.SIGINT)
        for _ in range(300):
            if p.poll() is not None:
                break
            time.sleep(0.1)
        p.communicate()
        self.assertEqual(p.returncode, 130)

    def test_interrupt_ends_every_kind_of_waiting(self):
        (self.dir / "long.txt").write_text("All work and no play. " * 150)
        reading = ("run", "-m", self.model, "-f", "long.txt", "--reference", "--prefill-chunk", "16", "-n", "1")
        for args, words in ((reading, " of 3300 tokens"), (("run", "-m", self.model, "-f", "-"), "standard input"),
                            (("chat", "-m", self.model), ""),
                            (("bench", "-m", self.model, "-p", "4000", "-r", "900"), "interrupted")):
            p = self.start(*args)
            time.sleep(0.3)
            p.send_signal(signal.SIGINT)
            p.wait(timeout=30)  # with its standard input open
            out, error = p.communicate()
            self.assertEqual(p.returncode, 130, (args, error))
            self.assertIn(words, error)
            self.assertEqual(out.strip(), "")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

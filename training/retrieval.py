"""Training rows: real text, or real text with retrieval material written over it, and the needles of the evaluation.

Every token carries a code that says what its loss is worth: 0 nothing (random values at first sight), 1 text, 2 needle
digits, 3 copies, 4 values of key-value lists, 5 quotes, 6 variables, 7 needle digits stated within the first
tokens, 8 the other words of an answer in a chat.
"""
import json
import lzma

import numpy as np

NOTHING, TEXT, NEEDLE, COPY, LIST, QUOTE, VARIABLE, START, ANSWER = range(9)
LOSS_WEIGHTS = [0.0, 1.0, 3.0, 2.0, 3.0, 1.5, 3.0, 3.0, 3.0]
START_TOKENS = 40  # a statement that begins before this one counts as START
LETTERS = 'abcdefghijklmnopqrstuvwxyz'
FIRST_TEXT_TOKEN = 16  # below are the specials


def load_tokens(path, dtype=np.uint16):
    with lzma.open(path) as file:
        return np.frombuffer(file.read(), dtype)


class Vocabulary:
    """The tokenizer, the words of needle keys, and every template already encoded."""

    def __init__(self, folder):
        from tokenizers import Tokenizer
        self.tokenizer = Tokenizer.from_file(folder + '/tokenizer.json')
        with open(folder + '/words.json') as file:
            self.words = json.load(file)
        inverse = {i: token for token, i in self.tokenizer.get_vocab().items()}
        self.size = len(inverse)
        self.bytes_of = np.array([0 if i < FIRST_TEXT_TOKEN else len(inverse[i]) for i in range(self.size)], np.int32)
        e = self.encode
        self.digits = [e(str(i))[0] for i in range(10)]
        # kind: (subject of the statement, subject of the question, link)
        self.subjects = [('The code for', 'What is the code for', ' is '),
                         ('The secret number of', 'What is the secret number of', ' is '),
                         ('The password of', 'What is the password of', ' is ')]
        self.before = [e(x) for x in ('\n', ' ', '\n\n', ' Remember: ')]
        self.statement = [e(' ' + s)[0:] for s, _, _ in self.subjects]  # with the leading space of running text
        self.line_statement = [e('\n' + s) for s, _, _ in self.subjects]
        self.is_link = e(' is ')
        self.ends = [e('.\n'), e('.'), e('.\n\n')]
        self.plain_question = [e('\nQuestion: ' + q) for _, q, _ in self.subjects]
        self.plain_answer, self.newline, self.the = e('? Answer: '), e('\n'), e(' the')
        self.user, self.assistant = [1] + e('user\n'), [2] + e('\n') + [1] + e('assistant\n')
        self.turn_end = [2] + e('\n')
        self.chat_question = [e('\n\n' + q) for _, q, _ in self.subjects]
        self.chat_next_question = [e(q) for _, q, _ in self.subjects]
        self.chat_answer = [e(s) for s, _, _ in self.subjects]
        self.question_mark, self.full_stop = e('?'), e('.')
        self.arrow, self.quote = e(' ->'), e('\n> ')
        self.hash_statement, self.hash_link, self.hash_question, self.hash_arrow = e('\n#'), e(' = '), e('\nlookup #'), e(' -> ')

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, tokens):
        return self.tokenizer.decode([int(t) for t in tokens], skip_special_tokens=False)


class Generator:
    def __init__(self, tokens, vocabulary, seed, held_out=False, first_share=0.1, far_share=0.0):
        self.tokens, self.v, self.r = tokens, vocabulary, np.random.default_rng(seed)
        self.first_share = first_share  # of the pairs start within the first 40 tokens, which else almost never happens
        self.far_share = far_share  # of the questions about such a pair stand in the row's last quarter
        self.words = vocabulary.words['held_out' if held_out else 'train']

    # --- material ---
    def text(self, n):
        at = int(self.r.integers(0, len(self.tokens) - n))
        return self.tokens[at:at + n].astype(np.int32)

    def word(self):
        return self.words[int(self.r.integers(len(self.words)))]

    def key(self, words=None):
        """Token ids of a key: mostly three words, sometimes `the` and one to three."""
        words = words or (3 if self.r.random() < 0.6 else int(self.r.integers(1, 4)))
        ids = sum((self.word() for _ in range(words)), [])
        return (self.v.the if self.r.random() < 0.3 else []) + ids

    def number(self, n=7):
        return [self.v.digits[i] for i in self.r.integers(0, 10, n)]

    def needle_parts(self, kind=None, key=None, value=None, line=None):
        """(kind, key, value, statement ids, statement codes)"""
        kind = int(self.r.choice(3, p=[0.6, 0.25, 0.15])) if kind is None else kind
        key = key or self.key()
        value = value or self.number(7 if self.r.random() < 0.7 else int(self.r.integers(3, 10)))
        line = self.r.random() < 0.6 if line is None else line
        head = (self.v.line_statement if line else self.v.statement)[kind] + key + self.v.is_link
        tail = self.v.ends[0 if line else int(self.r.integers(3))]
        return kind, key, value, head + value + tail, [TEXT] * len(head) + [NOTHING] * len(value) + [TEXT] * len(tail)

    # --- placing ---
    def free(self, taken, n, low, high):
        for _ in range(6):
            if high - n <= low:
                return -1
            at = int(self.r.integers(low, high - n))
            if all(at + n <= a or at >= b for a, b in taken):
                return at
        return -1

    def put(self, row, code, at, ids, codes, taken):
        row[at:at + len(ids)] = ids
        code[at:at + len(ids)] = codes
        taken.append((at, at + len(ids)))

    def start(self, taken, n, low):
        """A free place at the very start (half the time exactly there), or -1. Queries there see no compressed window
        yet, so what they write looks different from everything later and has to be learned for itself."""
        at = low + (0 if self.r.random() < 0.5 else int(self.r.integers(0, START_TOKENS)))
        return at if all(at + n <= a or at >= b for a, b in taken) else -1

    def pair(self, row, code, taken, first, first_codes, later, at_end=False, low=0, at_start=False):
        """Writes `first` and, after it, every (ids, codes) of `later`; at_end: the first of them ends the row."""
        n = len(row)
        if len(first) + sum(len(ids) for ids, _ in later) > n // 2:
            return 0
        q = n - len(later[0][0]) if at_end else None
        if at_end and any(q < b for _, b in taken):
            at_end = False
        p = self.free(taken, len(first), low, (q if at_end else n - 2 * len(later[0][0])) - 4)
        at = self.start(taken, len(first), low) if at_start or self.r.random() < self.first_share else -1
        p = at if at >= 0 else p
        if p < 0:
            return 0
        self.put(row, code, p, first, first_codes, taken)
        used = len(first)
        for i, (ids, codes) in enumerate(later):
            if not (at_end and i == 0):
                is_far = p < low + START_TOKENS and self.far_share > 0 and self.r.random() < self.far_share
                q = self.free(taken, len(ids), n * 3 // 4 if is_far else p + len(first), n)
            if q < 0:
                continue
            codes = [START if c == NEEDLE else c for c in codes] if p < low + START_TOKENS else codes
            self.put(row, code, q, ids, codes, taken)
            used += len(ids)
        return used

    # --- tasks ---
    def needle(self, row, code, taken, at_end=False, at_start=False):
        """A statement and its questions: one or two, of one at the start up to nine, since a row has one start only."""
        if self.r.random() < 0.15:
            key, value = self.key(), self.number(7 if self.r.random() < 0.8 else int(self.r.integers(3, 10)))
            head = self.v.hash_statement + key + self.v.hash_link
            statement = head + value + self.v.newline
            codes = [TEXT] * len(head) + [NOTHING] * len(value) + [TEXT]
            questions = [(self.v.hash_statement + key + self.v.hash_link, self.v.newline),
                         (self.v.hash_question + key + self.v.hash_arrow, self.v.newline)]
            kind = None
        else:
            kind, key, value, statement, codes = self.needle_parts()
            questions = [(self.v.line_statement[kind] + key + self.v.is_link, self.v.ends[0]),
                         (self.v.plain_question[kind] + key + self.v.plain_answer, self.v.newline)]
        later = []
        count = 1 + int(self.r.integers(0, min(9, 2 + len(row) // 2048))) if at_start else 1 + (self.r.random() < 0.3)
        for _ in range(count):
            head, tail = questions[int(self.r.integers(2))]
            tail = [] if at_end and not later else tail
            later.append((head + value + tail, [TEXT] * len(head) + [NEEDLE] * len(value) + [TEXT] * len(tail)))
        used = self.pair(row, code, taken, statement, codes, later, at_end, at_start=at_start)
        if used and kind is not None and self.r.random() < 0.3:
            self.distractor(row, code, taken, kind, key, len(value))
        return used

    def distractor(self, row, code, taken, kind, key, digits):
        """A near key (one token run replaced by another word) with another value, anywhere in the row."""
        cut = int(self.r.integers(len(key)))
        _, _, _, ids, codes = self.needle_parts(kind, key[:cut] + self.word() + key[cut + 1:], self.number(digits))
        p = self.free(taken, len(ids), 0, len(row))
        if p >= 0:
            self.put(row, code, p, ids, codes, taken)

    def copy(self, row, code, taken):
        n = int(min(2 ** self.r.uniform(3.5, 8), len(row) // 6))
        ids = self.r.integers(FIRST_TEXT_TOKEN, self.v.size, n) if self.r.random() < 0.5 else self.r.permutation(self.text(n))
        times = 1 + (self.r.random() < 0.3)
        return self.pair(row, code, taken, ids.tolist(), [NOTHING] * n, [(ids.tolist(), [TEXT] + [COPY] * (n - 1))] * times)

    def key_value_list(self, row, code, taken):
        pairs = int(min(2 ** self.r.uniform(2, 6), len(row) // 40))
        entries = [(self.v.newline + self.word(), self.word() if self.r.random() < 0.6 else self.number(int(self.r.integers(1, 5))))
                   for _ in range(pairs)]
        first, first_codes, later, later_codes = [], [], [], []
        for key, value in entries:
            first += key + self.v.arrow + value
            first_codes += [TEXT] * (len(key) + len(self.v.arrow)) + [NOTHING] * len(value)
        for i in self.r.permutation(pairs)[:max(2, pairs // 2)]:
            key, value = entries[i]
            later += key + self.v.arrow + value
            later_codes += [TEXT] * (len(key) + len(self.v.arrow)) + [LIST] * len(value)
        return self.pair(row, code, taken, first, first_codes, [(later, later_codes)])

    def quotation(self, row, code, taken):
        n = int(min(2 ** self.r.uniform(4.5, 8), len(row) // 6))
        p = self.free(taken, n, 0, len(row) * 3 // 4)
        q = self.free(taken, n + len(self.v.quote), p + n, len(row)) if p >= 0 else -1
        if q < 0:
            return 0
        ids = row[p:p + n].tolist()
        taken.append((p, p + n))
        self.put(row, code, q, self.v.quote + ids, [TEXT] * (len(self.v.quote) + 1) + [QUOTE] * (n - 1), taken)
        return n

    def variable(self, row, code, taken):
        def letters(n):
            return ''.join(LETTERS[i] for i in self.r.integers(0, 26, n))
        name = letters(2) + str(int(self.r.integers(100)))
        value = self.v.encode(letters(int(self.r.integers(3, 7))))
        head, tail = self.v.encode('\n%s = \'' % name), self.v.encode("'\n")
        ask = self.v.encode("\nprint(%s)  # -> '" % name)
        return self.pair(row, code, taken, head + value + tail, [TEXT] * len(head) + [NOTHING] * len(value) + [TEXT] * len(tail),
                         [(ask + value + tail, [TEXT] * len(ask) + [VARIABLE] * len(value) + [TEXT] * len(tail))])

    def conversation(self, row, code):
        """The whole row is one chat: a document in the first turn, then one or several questions with their answers."""
        n = len(row)
        questions = 1 if self.r.random() < 0.5 else int(self.r.integers(2, 5 if n < 4096 else 9))
        needles = [self.needle_parts() for _ in range(questions + int(self.r.integers(0, 2)))]
        tail, tail_codes, first_value = [], [], 0  # where the value of the first needle stands in the tail
        for i, (kind, key, value, _, _) in enumerate(needles[:questions]):
            ask = (self.v.chat_question if i == 0 else self.v.chat_next_question)[kind] + key + self.v.question_mark
            start = ask if i == 0 else self.v.turn_end + self.v.user + ask
            answer = self.v.chat_answer[kind] + key + self.v.is_link
            first_value = first_value or len(start + self.v.assistant + answer)
            tail += start + self.v.assistant + answer + value + self.v.full_stop
            tail_codes += [TEXT] * len(start + self.v.assistant) + [ANSWER] * len(answer) + [NEEDLE] * len(value) + [ANSWER]
        tail += [2]
        tail_codes += [ANSWER]
        low, high = len(self.v.user), n - len(tail)
        if high < low + 40 + 40 * len(needles):
            return False
        row[:low] = self.v.user
        row[high:], code[high:] = tail, tail_codes
        taken = []
        for _, _, _, ids, codes in needles:
            p = self.start(taken, len(ids), low) if not taken and self.r.random() < 2 * self.first_share else -1
            p = p if p >= 0 else self.free(taken, len(ids), low, high)
            for attempt in range(200):
                if p >= 0:
                    break
                p = self.free(taken, len(ids), low, high)
            if p < 0:
                return False
            if not taken and p < low + START_TOKENS:
                code[high + first_value:high + first_value + len(needles[0][2])] = START
            self.put(row, code, p, ids, codes, taken)
        return True

    def row(self, T, share):
        n = T + 1
        row, code = self.text(n), np.ones(n, np.uint8)
        if self.r.random() >= share:
            return row, code
        if self.r.random() < 0.4:
            if self.conversation(row, code):
                return row, code
            row, code = self.text(n), np.ones(n, np.uint8)
        taken, used, tries = [], 0, 0
        u = self.r.random()
        tasks = [self.needle, self.copy, self.key_value_list, self.quotation, self.variable]
        budget = 1 if u < 0.25 else n * self.r.uniform(0.05, 0.35 if T > 1024 else 0.6)
        if self.r.random() < self.first_share:
            used += self.needle(row, code, taken, at_end=self.r.random() < 0.5, at_start=True)
        if u < 0.6 or budget == 1:
            used += self.needle(row, code, taken, at_end=True)
        for _ in range(int(self.r.integers(0, 1 + T // 512)) if budget > 1 else 0):  # long copies would leave few needles
            self.needle(row, code, taken)
        while used < budget and tries < 120:
            tries += 1
            used += tasks[int(self.r.choice(5, p=[0.5, 0.17, 0.13, 0.1, 0.1]))](row, code, taken)
        return row, code

    def batch(self, rows, T, share):
        made = [self.row(T, share) for _ in range(rows)]
        return np.stack([row for row, _ in made]), np.stack([code for _, code in made])

    # --- evaluation ---
    def needle_row(self, T, depth, form='completion'):
        """T + 1 tokens that end with the answer: (row, position of the value, length of the answer to check). depth: a
        fraction of the haystack, or a whole number of its tokens.

        completion: the statement's own words again, 7 digits; question: a chat turn, the whole answering sentence and
        the end of the turn."""
        key = sum((self.word() for _ in range(3)), [])
        kind, key, value, statement, _ = self.needle_parts(0, key, self.number(), line=True)
        if form == 'completion':
            head, tail, answer = [], self.v.line_statement[0] + key + self.v.is_link, value
        else:
            head = self.v.user
            tail = self.v.chat_question[0] + key + self.v.question_mark + self.v.assistant
            answer = self.v.chat_answer[0] + key + self.v.is_link + value + self.v.full_stop + [2]
        haystack = self.text(T + 1 - len(head) - len(statement) - len(tail) - len(answer))
        p = min(depth if isinstance(depth, int) else int(depth * len(haystack)), len(haystack))
        row = np.concatenate([head, haystack[:p], statement, haystack[p:], tail, answer]).astype(np.int32)
        value_at = len(head) + p + len(self.v.line_statement[0]) + len(key) + len(self.v.is_link)
        return row, value_at, len(answer)

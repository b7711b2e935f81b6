"""From the files of an unpacked Debian package to plain text documents.

Every format keeps only what a reader would see: markup, navigation, generated tables and licence files are
dropped, because they would teach a small model little but boilerplate.
"""
import gzip
import hashlib
import html
import os
import re

DROPPED_ELEMENTS = re.compile(r'(?is)<(script|style|head|nav|footer)\b.*?</\1>|<!--.*?-->')
MAIN_PART = re.compile(r'(?is)<(?:div class="body"|main|div[^>]*role="main")[^>]*>(.*)')
LINE_ENDING_TAGS = re.compile(r'(?i)<(?:/p|br|/div|/h\d|/li|/tr|/dt|/dd|/pre|/table|hr)\b[^>]*>')
ANY_TAG = re.compile(r'<[^>]*>')
TRAILING_SPACE = re.compile(r'[ \t\r]+\n')
BLANK_LINES = re.compile(r'\n{3,}')
POD_COMMAND = re.compile(r'(?m)^=(head\d|item|over|back|cut|pod|encoding|for|begin|end) ?')
POD_STYLE = re.compile(r'[BCFILSX]<([^<>]*)>')
MAN_COMMENT = re.compile(r'(?m)^[.\'](\\"|\s*$).*\n')
MAN_MACRO = re.compile(r'(?m)^[.\'][A-Za-z]{1,3}[ \t]*')
MAN_ESCAPE = re.compile(r'\\f[BIRP]|\\&|\\[|^]')

HTML_ENDINGS = {'html', 'htm', 'xhtml', 'en'}
PLAIN_ENDINGS = {'go', 'py', 'rs', 'txt', 'md', 'rst', 's', 'sql', 'h'}
SHORTEST_DOCUMENT = 300  # characters; shorter files are stubs and redirects


def clean_html(text):
    text = DROPPED_ELEMENTS.sub('', text)
    main = MAIN_PART.search(text)
    text = main.group(1) if main else text
    text = html.unescape(ANY_TAG.sub('', LINE_ENDING_TAGS.sub('\n', text)))
    return text.replace('\u00b6', '').replace('\u00a0', ' ')


def clean_pod(text):
    text = POD_COMMAND.sub('', text)
    return POD_STYLE.sub(r'\1', POD_STYLE.sub(r'\1', text))  # twice: styles nest once at most in practice


def clean_man(text):
    return MAN_ESCAPE.sub('', MAN_MACRO.sub('', MAN_COMMENT.sub('', text))).replace('\\-', '-')


def read_text(path):
    """The text of a file (gzip or not), or None when it is binary or unreadable."""
    try:
        with (gzip.open(path) if path.endswith('.gz') else open(path, 'rb')) as file:
            data = file.read()
    except OSError:
        return None
    return None if b'\0' in data[:2048] else data.decode('utf8', 'ignore')


def wordnet_glosses(path):
    """WordNet's data files hold one synset a line; only the definitions and examples are text."""
    lines = {line.split(' | ', 1)[1].strip() for line in read_text(path).split('\n') if ' | ' in line}
    return '\n'.join(sorted(lines, key=lambda line: hashlib.md5(line.encode()).digest()))


def is_skipped(package, path, name):
    lower = path.lower()
    if any(part in lower for part in ('copyright', 'changelog', '_sources', 'genindex', '/searchindex', '/testdata/')):
        return True
    if package == 'apache2-doc':
        return not (name.endswith('.en') or 'manual/en' in path)  # the other languages are translations of the same
    if package == 'rust-doc':
        return '/html/book/' not in path and '/html/reference/' not in path and '/html/nomicon/' not in path
    if '/vendor/' in path or '/tests/' in path and package.startswith('python3-'):
        return True  # other projects with other licences; numeric test tables
    return False


def documents_of(package, root):
    """Yields the documents of an unpacked package in path order, so that neighbours stay neighbours."""
    paths = sorted(os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names)
    for path in paths:
        if os.path.islink(path):
            continue
        name = path[:-3] if path.endswith('.gz') else path
        ending = name.rsplit('.', 1)[-1].lower() if '.' in os.path.basename(name) else ''
        if is_skipped(package, path, name):
            continue
        size = os.path.getsize(path)
        text = None
        if package == 'wordnet-base':
            text = wordnet_glosses(path) if os.path.basename(path).startswith('data.') else None
        elif package == 'freebsd-manpages':
            text = read_text(path)
            text = clean_man(text) if text and '/man/' in path else None
        elif ending in HTML_ENDINGS:
            text = read_text(path)
            text = clean_html(text) if text else None
        elif ending in ('pod', 'pm', 'pl'):
            text = read_text(path)
            text = clean_pod(text) if text and ending == 'pod' else text
        elif ending in PLAIN_ENDINGS:
            generated = ending in ('go', 's', 'rs') and size > 400_000 or '_test.go' in path and size > 60_000
            text = None if generated else read_text(path)
        elif package in ('jargon-text', 'cfi-en', 'dict-devil') and size > 5000:
            text = read_text(path)
            text = clean_html(text) if text and '<' in text[:200] else text
        if not text:
            continue
        text = BLANK_LINES.sub('\n\n', TRAILING_SPACE.sub('\n', text)).strip()
        if len(text) > SHORTEST_DOCUMENT:
            yield text

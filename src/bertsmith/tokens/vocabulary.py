"""Training a WordPiece vocabulary, the same one every time for the same words.

The trainer of `tokenizers` numbers the letters in the order of a hash map and breaks ties by these numbers, so two
runs differ. Here words are counted first, the alphabet is chosen from the counts, and its letters are pinned in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from tokenizers import PreTokenizedString, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Engine

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import say
from bertsmith.base.tally import Tally
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.tokens.tokenizer_files import LONGEST_WORD, SPECIAL_PIECES

MULTIPLE = 64
# Their pieces would be of no use: WordPiece makes one [UNK] of such a word.
TOO_LONG = f"words longer than {LONGEST_WORD} characters, [UNK] to BERT, not counted for the vocabulary"
_SHOWN = 40
# ASCII alone takes up to 156 rows, with ## before letters and digits.
SMALLEST = 256
# A tokenizer of so many pieces takes 1.2 GB and 20 seconds to make, and the largest in use have as many.
LARGEST = 1 << 20
# Letters beyond this share of all letters of the sample become [UNK]. A quarter of the rows is the most that they may
# take from words, and with ## before them as many again; beyond it they get rows that words leave free.
_COVERAGE = 0.9999
_ALPHABET_SHARE = 4
_BATCH_WORDS = 4096


def rounded_size(size: int) -> int:
    """`size` rounded up to a multiple of 64, which matrix products like."""
    return -(-size // MULTIPLE) * MULTIPLE


def check_size(size: int, where: str, smallest: int = SMALLEST) -> None:
    """Raises BertsmithError for a size that no vocabulary is made of."""
    if not smallest <= size <= LARGEST:
        what = f"a vocabulary of {size:,} pieces is too {'small' if size < smallest else 'large'}"
        raise BertsmithError(what, where, f"use a whole number from {smallest} to {LARGEST:,}")


def count_stretches(texts: Iterable[str]) -> Counter[str]:
    """How often each stretch without a space or line feed occurs in the texts, words with their punctuation."""
    stretches: Counter[str] = Counter()
    for text in texts:
        stretches.update(text.replace("\n", " ").split(" "))
    del stretches[""]
    return stretches


def count_words(texts: Iterable[str], lowercase: bool, left_out: Tally) -> Counter[str]:
    """How often each word occurs in the texts, words being what BERT's normaliser and pre-tokenizer make of them.

    left_out: takes those that are too long for BERT.
    """
    return words_of(count_stretches(texts), normalizer_for(lowercase), left_out)


def normalizer_for(lowercase: bool) -> normalizers.Normalizer:
    """BERT's normaliser, of trained vocabularies."""
    return normalizers.BertNormalizer(lowercase=lowercase)


def words_of(stretches: Mapping[str, int], normalizer: normalizers.Normalizer, left_out: Tally) -> Counter[str]:
    """The words of counted stretches, but those that are too long for BERT, which go into `left_out`.

    Both tools work within a stretch, so each distinct one is worked on once.
    """
    splitter = pre_tokenizers.BertPreTokenizer()
    words: Counter[str] = Counter()
    for stretch, count in stretches.items():
        any_long = False
        for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(stretch)):
            if len(word) <= LONGEST_WORD:
                words[word] += count
            else:
                any_long = True
        if any_long:
            for size_bytes, shown in long_words(stretch, normalizer):
                left_out.note(TOO_LONG, count, count * size_bytes, shown)
    return words


def long_words(stretch: str, normalizer: normalizers.Normalizer) -> list[tuple[int, str]]:
    """The words of a stretch that are too long for BERT: the UTF-8 bytes of each as it stands in the text, and its
    beginning, for the user.

    BERT counts characters after its normaliser, which takes a syllable of Korean apart and drops marks of Thai.
    """
    text = PreTokenizedString(stretch)
    text.normalize(normalizer.normalize)
    pre_tokenizers.BertPreTokenizer().pre_tokenize(text)
    words = ((len(word), stretch[begin:end]) for word, (begin, end), _ in text.get_splits("original", "char"))
    return [
        (len(word.encode(errors="replace")), f"{word[:_SHOWN]}... ({length:,} characters)")
        for length, word in words
        if length > LONGEST_WORD
    ]


def train_vocabulary(texts: Iterable[str], size: int, lowercase: bool = True) -> Tokenizer:
    """Trains WordPiece on texts: [PAD] is 0, then [UNK], [CLS], [SEP], [MASK], letters, merged pieces, further letters
    where rows are free, [unusedN].

    size: rows, rounded up to a multiple of 64. What is left out is logged. Raises BertsmithError when the texts hold no
    word or size is too small or too large.
    """
    left_out = Tally()
    counts = count_words(texts, lowercase, left_out)
    for line in left_out.lines():
        say(line)
    return train_on_counts(counts, size, lowercase)


def train_on_counts(counts: Mapping[str, int], size: int, lowercase: bool = True) -> Tokenizer:
    """As `train_vocabulary`, from counted words."""
    rows = rounded_size(size)
    if not counts:
        raise BertsmithError("there is no word to train a vocabulary on", "the text", "give a source with text in it")
    check_size(rows, "vocabulary size")
    letters = choose_alphabet(counts, rows)
    alphabet = {*letters[: rows // _ALPHABET_SHARE], *ascii_letters(lowercase)}
    words = sorted((word, count) for word, count in counts.items() if alphabet.issuperset(word))
    inner = {f"##{letter}" for word, _ in words for letter in word[1:]}
    inner |= {f"##{letter}" for letter in ascii_letters(lowercase) if letter.isalnum()}
    pinned = [*SPECIAL_PIECES, *sorted(alphabet), *sorted(inner)]
    engine = Engine(models.WordPiece(unk_token="[UNK]"))
    engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(vocab_size=rows, min_frequency=2, special_tokens=pinned, show_progress=False)
    engine.train_from_iterator(_repeated(words), trainer)
    ids = engine.get_vocab()
    pieces = sorted(ids, key=ids.__getitem__)[:rows]
    pieces += _letter_rows(counts, [letter for letter in letters if letter not in alphabet], rows - len(pieces))
    pieces += [f"[unused{number}]" for number in range(rows - len(pieces))]
    return Tokenizer.from_vocabulary(pieces, lowercase)


def share_without_rows(counts: Mapping[str, int], tokenizer: Tokenizer) -> float:
    """The share of counted words, 0 to 1, that are [UNK] since one of their letters has no row in the vocabulary that
    was trained on them."""
    first = set(tokenizer.pieces)
    inner = {piece[2:] for piece in tokenizer.pieces if piece.startswith("##")}
    lost = sum(count for word, count in counts.items() if word[0] not in first or not inner.issuperset(word[1:]))
    return lost / max(sum(counts.values()), 1)


def ascii_letters(lowercase: bool) -> set[str]:
    """The printable ASCII characters, which every vocabulary gets, seen or not."""
    return {chr(code) for code in range(33, 127) if not (lowercase and chr(code).isupper())}


def choose_alphabet(counts: Mapping[str, int], most: int) -> list[str]:
    """The most frequent letters that together make up 99.99% of all, at most `most`; ties to the lower code point."""
    letters: Counter[str] = Counter()
    for word, count in counts.items():
        for letter in word:
            letters[letter] += count
    wanted, covered, alphabet = _COVERAGE * letters.total(), 0, list[str]()
    for letter, count in sorted(letters.items(), key=lambda item: (-item[1], item[0])):
        if covered >= wanted or len(alphabet) >= most:
            break
        alphabet.append(letter)
        covered += count
    return alphabet


def _letter_rows(counts: Mapping[str, int], letters: Iterable[str], room: int) -> list[str]:
    """Pieces of as many of the letters as there is room for; with ## too where they stand within words, which Chinese
    ones do not, as each is a word."""
    inner, found = {letter for word in counts for letter in word[1:]}, list[str]()
    for letter in letters:
        rows = [letter, f"##{letter}"] if letter in inner else [letter]
        if len(found) + len(rows) > room:
            break
        found += rows
    return found


def _repeated(words: list[tuple[str, int]]) -> Iterator[list[str]]:
    """The words as often as they were counted, in batches: the trainer counts for itself."""
    for start in range(0, len(words), _BATCH_WORDS):
        yield [f"{word} " * count for word, count in words[start : start + _BATCH_WORDS]]

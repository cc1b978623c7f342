"""The files of a tokenizer folder, in and out: tokenizer.json, vocab.txt and the two that say casing and roles."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Engine

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import counted, log_choice, say, warn

# In the order of the fields of SpecialIds.
SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ROLES = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL_PIECES, strict=True))
LONGEST_WORD = 100
CONFIG_FILE = "tokenizer_config.json"
ADDED_FILE, ROLES_FILE = "added_tokens.json", "special_tokens_map.json"
# How a token is looked for in a text, with what `tokenizers` does by default for one that is not special.
TOKEN_FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True}
# What tokenizer_config.json says, and what the normaliser of tokenizer.json calls it.
_CASING = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
# The classes of transformers that take a tokenizer.json as it is; BertTokenizer has a casing of its own.
_AS_IT_IS = ("PreTrainedTokenizerFast", "TokenizersBackend", "PreTrainedTokenizer")
# Of a BertJapaneseTokenizer, with what is done here: text that mecab splits into words would become other pieces.
_SPLITTING = {"word_tokenizer_type": "basic", "subword_tokenizer_type": "wordpiece"}
# Of the model: others would give ids that are not counted as [UNK], or pieces not taken for the inner ones of words.
_MODEL = {"unk_token": "[UNK]", "continuing_subword_prefix": "##"}
# The pieces of a vocabulary are a list in memory, by their ids.
_MOST_PIECES = 10_000_000
_PARTS = {"model": "WordPiece", "normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer"}
_CONFIG_FIX = "correct it, or remove it: then the other files say the casing"
_ADDED_FIX = "correct it, or read the vocabulary from a folder of its own, without added tokens"
_MARK = "\ufeff"
_FIX = "give a folder with tokenizer.json or vocab.txt of a BERT WordPiece tokenizer"


def engine_from_vocabulary(
    pieces: Sequence[str], lowercase: bool, where: str, strip_accents: bool | None = None, chinese: bool = True
) -> Engine:
    """BERT's tokenizer over `pieces` (their index is their id). strip_accents None: as `lowercase`.

    Raises BertsmithError when a special piece is missing or a piece stands twice.
    """
    ids = {piece: number for number, piece in enumerate(pieces)}
    missing = [piece for piece in SPECIAL_PIECES if piece not in ids]
    if missing:
        raise BertsmithError(f"the vocabulary has no {', '.join(missing)}", where, "BERT needs all five special pieces")
    twice = [piece for piece, count in Counter(pieces).items() if count > 1]
    if twice:
        such = repr(twice[0]) if twice[0] else "the empty one: lines without anything"
        what = f"the vocabulary has {counted(len(twice), 'piece')} twice, such as {such}"
        raise BertsmithError(what, where, "keep one of each")
    engine = Engine(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=LONGEST_WORD))
    engine.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=chinese, strip_accents=strip_accents, lowercase=lowercase
    )
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    engine.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in SPECIAL_PIECES])
    engine.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    return engine


def read_engine(source: Path) -> Engine:
    """Reads a folder, a `tokenizer.json` or a `vocab.txt`. Raises BertsmithError when it is not BERT's WordPiece."""
    if not source.exists():
        raise BertsmithError("there is no tokenizer here", source, _FIX)
    if source.is_file():
        return _read_json(source) if source.suffix == ".json" else _read_vocabulary(source)
    for name, read in (("tokenizer.json", _read_json), ("vocab.txt", _read_vocabulary)):
        if (source / name).is_file():
            return read(source / name)
    # A corpus and a run have one in a folder of theirs.
    fix = next((f"give {source / name}" for name in ("tokenizer", "model") if (source / name).is_dir()), _FIX)
    raise BertsmithError("this folder holds neither tokenizer.json nor vocab.txt", source, fix)


def config_files(state: Mapping[str, Any], keep_end: bool = False) -> dict[str, dict[str, Any]]:
    """What tokenizer_config.json and special_tokens_map.json say, by file name. How long a text a model can read is not
    known here: a model folder says it (`set_max_length`). state: what tokenizer.json says.
    keep_end: as of `Tokenizer`."""
    normalizer, added = state["normalizer"], state["added_tokens"]
    config = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": normalizer["lowercase"],
        "strip_accents": normalizer["strip_accents"],
        "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
        "clean_up_tokenization_spaces": False,
        **({"truncation_side": "left"} if keep_end else {}),
    }
    if any(token["content"] not in SPECIAL_PIECES for token in added):
        # For those who read vocab.txt, which does not tell an added token from a piece.
        described = {str(token["id"]): {key: token[key] for key in token if key != "id"} for token in added}
        config["added_tokens_decoder"] = described
        special = [token["content"] for token in added if token["special"] and token["content"] not in SPECIAL_PIECES]
        # By the name that transformers 4 and 5 both read; without it they do not count these as special.
        config |= {"additional_special_tokens": special} if special else {}
    return {CONFIG_FILE: config | _ROLES, ROLES_FILE: _ROLES}


def set_max_length(folder: Path, longest: int) -> None:
    """Writes into a folder's tokenizer_config.json how many pieces its model reads: `transformers` truncates there.

    Raises BertsmithError when the disk refuses.
    """
    path = folder / CONFIG_FILE
    files.write_json(path, {**files.read_json(path), "model_max_length": longest})


def keeps_end(folder: Path) -> bool:
    """Whether a text that is too long loses its beginning by what a folder says, as `transformers` reads it: by
    `truncation_side`, and where that is not said by the last use of its tokenizer.json. Raises BertsmithError for
    another side."""
    path, saved = folder / CONFIG_FILE, folder / "tokenizer.json"
    config = _read_object(path, _CONFIG_FIX)
    if "truncation_side" not in config:
        used = files.read_json(saved, _FIX).get("truncation") if saved.is_file() else None
        return isinstance(used, dict) and used.get("direction") == "Left"
    side = config["truncation_side"]
    if side not in ("left", "right"):
        what = f"truncation_side is {json.dumps(side)}, neither left nor right"
        raise BertsmithError(what, path, "correct or remove it")
    return bool(side == "left")


def _follow_config(path: Path, normalizer: dict[str, Any]) -> None:
    """Changes the normaliser of a tokenizer.json where the config beside it says otherwise, as `transformers` does."""
    beside = path.with_name(CONFIG_FILE)
    config = _read_config(beside)
    casing = _casing_of(config, beside)
    if config.get("tokenizer_class") in _AS_IT_IS:
        return
    for name, value in casing.items():
        ours = _CASING[name]
        # An accent rule of null means: as the casing.
        if normalizer.get(ours) != value and (value is not None or name == "strip_accents"):
            before = json.dumps(normalizer.get(ours))
            reason = f"{CONFIG_FILE} says so, and transformers follows it; {path.name} has {before}"
            log_choice(f"{name} of {path}", json.dumps(value), reason)
            normalizer[ours] = value
    if "do_lower_case" not in casing and not normalizer.get("lowercase"):
        why = f"it says so; BertTokenizer of transformers lower-cases, unless do_lower_case of {CONFIG_FILE} is false"
        log_choice(f"casing of {path}", "cased", why)


def _read_json(path: Path) -> Engine:
    state = files.read_json(path, _FIX)
    for part, wanted in _PARTS.items():
        described = state.get(part) if isinstance(state, dict) else None
        found = described.get("type") if isinstance(described, dict) else None
        if found != wanted:
            raise BertsmithError(f"its {part} is {found}, BERT's is {wanted}", path, _FIX)
    _check_model(state["model"], path)
    # A saved tokenizer may carry the padding and truncation of its last use; ids must not depend on them.
    state["padding"] = state["truncation"] = None
    _follow_config(path, state["normalizer"])
    try:
        engine = Engine.from_str(json.dumps(state))
    except Exception as error:  # the library raises bare Exception
        raise BertsmithError(f"the tokenizer cannot be read ({error})", path, _FIX) from error
    missing = [piece for piece in SPECIAL_PIECES if engine.token_to_id(piece) is None]
    if missing:
        raise BertsmithError(f"the vocabulary has no {', '.join(missing)}", path, "BERT needs all five special pieces")
    return engine


def _check_model(model: Mapping[str, Any], path: Path) -> None:
    for name, wanted in _MODEL.items():
        if model.get(name, wanted) != wanted:
            raise BertsmithError(f"its {name} is {json.dumps(model[name])}, BERT's is {wanted}", path, _FIX)
    pieces, by_id = model.get("vocab"), dict[int, str]()
    if not isinstance(pieces, dict):
        return
    for piece, number in pieces.items():
        if type(number) is not int:
            continue  # which the library refuses
        if number >= _MOST_PIECES:
            what = f"{piece!r} has the id {number}, and no vocabulary here has more than {_MOST_PIECES:,} rows"
            raise BertsmithError(what, path, "copy the file again, or take the vocab.txt that belongs to it")
        other = by_id.setdefault(number, piece)
        if other != piece:
            what = f"{other!r} and {piece!r} have one id, {number}, so that one of them would be [UNK]"
            raise BertsmithError(what, path, "copy the file again, or take the vocab.txt that belongs to it")


def _read_vocabulary(path: Path) -> Engine:
    try:
        with files.read_errors(path):
            text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BertsmithError(f"this vocabulary is not UTF-8 text ({error})", path, _FIX) from error
    if text.startswith(_MARK):
        say(f"{path}: its byte order mark is left out; it is no part of the first piece")
        text = text.removeprefix(_MARK)
    # Split at line feeds only, which Windows' line ends were read as: pieces may be other characters that splitlines()
    # takes for line ends.
    pieces = text.removesuffix("\n").split("\n")
    if pieces.count("") == 1:
        warn(f"{path}: line {pieces.index('') + 1:,} is empty; it counts as a piece, which no text gives")
    beside = path.with_name(CONFIG_FILE)
    config = _casing_of(_read_config(beside), beside)
    lowercase = config.get("do_lower_case")
    if lowercase is None:
        lowercase = _has_no_capitals(pieces)
        reason = "no word in it has a capital letter" if lowercase else "some pieces have capital letters"
        choice = "lower-cased" if lowercase else "cased"
        log_choice(f"casing of {path.name}", choice, f"{reason}, and no file beside it says which")
    chinese = config.get("tokenize_chinese_chars") is not False
    engine = engine_from_vocabulary(pieces, lowercase, str(path), config.get("strip_accents"), chinese)
    for where, number, token in _tokens_beside(path):
        engine.add_tokens([token])
        place = engine.token_to_id(token.content)
        if number not in (None, place):
            what = f"the token {token.content!r} has id {number}, and with this vocabulary it would be {place}"
            raise BertsmithError(what, where, _ADDED_FIX)
    return engine


def _tokens_beside(path: Path) -> Iterator[tuple[Path, int | None, AddedToken]]:
    """The tokens that the files beside a vocab.txt add to it, in the order in which `transformers` adds them: the file
    that says so, the id where it says one, the token. Raises BertsmithError for what is no token."""
    where, roles_path = path.with_name(CONFIG_FILE), path.with_name(ROLES_FILE)
    config = roles = _read_object(where, _CONFIG_FIX)
    if "added_tokens_decoder" in config:  # read in place of the other two files
        declared = config["added_tokens_decoder"]
        if not isinstance(declared, dict) or not all(number.isdecimal() for number in declared):
            raise BertsmithError("its added_tokens_decoder is no JSON object with ids as keys", where, _ADDED_FIX)
        found = {int(number): _token(token, where) for number, token in declared.items()}
    else:
        roles_file = _read_object(roles_path, _ADDED_FIX)
        roles = config | roles_file
        # What this list names is special only where added_tokens.json does not have it: transformers 5 reads it later.
        early = config | {key: value for key, value in roles_file.items() if key != "additional_special_tokens"}
        special = {token.content for token in _special_tokens(early, roles_path)}
        where = path.with_name(ADDED_FILE)
        declared = _read_object(where, _ADDED_FIX)
        if not all(type(number) is int for number in declared.values()) or len(set(declared.values())) < len(declared):
            raise BertsmithError("this file does not give each token an id of its own", where, _ADDED_FIX)
        found = {number: _token(each, where, each in special) for each, number in declared.items()}
    for number in sorted(found):
        yield where, number, found[number]
    known = {token.content for token in found.values()} | set(SPECIAL_PIECES)
    for token in _special_tokens(roles, roles_path):
        if token.content not in known:
            yield roles_path, None, token


def _special_tokens(roles: Mapping[str, Any], where: Path) -> list[AddedToken]:
    """Those that a config or special_tokens_map.json names beside BERT's five."""
    named = [roles[key] for key in ("bos_token", "eos_token") if roles.get(key)]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        several = roles.get(key) or []
        named += several if isinstance(several, list) else several.values() if isinstance(several, dict) else [several]
    return [_token(each, where, special=True) for each in named]


def _token(described: Any, where: Path, special: bool = False) -> AddedToken:
    """A token by its text, or with all that `transformers` writes of it."""
    values = {"content": described, "special": special} if isinstance(described, str) else described
    if not isinstance(values, dict) or not isinstance(values.get("content"), str):
        raise BertsmithError(f"{json.dumps(described)} is no token", where, _ADDED_FIX)
    special = special or bool(values.get("special"))
    flags = {name: bool(values[name]) for name in TOKEN_FLAGS if name in values}
    return AddedToken(values["content"], special=special, **{"normalized": not special, **flags})


def _has_no_capitals(pieces: Sequence[str]) -> bool:
    """Whether a vocabulary is of lower-cased text, by its pieces of several letters, or by its letters where it has
    letters alone. Special pieces such as "[MASK]" and "<S>" do not count, nor do letters beside words: lower-cased
    vocabularies may have capital ones as symbols."""
    letters = [each for each in (piece.removeprefix("##") for piece in pieces) if each.isalpha()]
    words = [each for each in letters if len(each) > 1]
    return all(each == each.lower() for each in words or letters)


def _read_config(path: Path) -> dict[str, Any]:
    """A tokenizer_config.json; {} where there is none. Raises BertsmithError where it, or the special_tokens_map.json
    that belongs to it, says other words or other special pieces than BERT's."""
    config, roles_path = _read_object(path, _CONFIG_FIX), path.with_name(ROLES_FILE)
    splitting = {} if config.get("tokenizer_class") in ("BertTokenizer", "BertTokenizerFast") else _SPLITTING
    wanted = [(path, config, _ROLES | splitting)]
    if "added_tokens_decoder" not in config:  # where it is there, transformers does not read the other file
        wanted.append((roles_path, _read_object(roles_path, _ADDED_FIX), _ROLES))
    for where, values, ours in wanted:
        for name, piece in ours.items():
            said = values.get(name)
            said = said.get("content") if isinstance(said, dict) else said
            if said not in (None, "", piece):
                fix = f"correct it, or use transformers for this model; {_FIX}"
                raise BertsmithError(f"its {name} is {json.dumps(said)}, BERT's is {piece}", where, fix)
    return config


def _casing_of(config: Mapping[str, Any], path: Path) -> dict[str, bool | None]:
    """What a tokenizer_config.json, which is at `path`, says of casing, accents and ideographs. Raises
    BertsmithError for what is neither true, false nor null."""
    found = {name: config[name] for name in _CASING if name in config}
    for name, value in found.items():
        if value is not None and not isinstance(value, bool):
            raise BertsmithError(f"{name} is {json.dumps(value)}, neither true nor false", path, _CONFIG_FIX)
    return found


def _read_object(path: Path, fix: str) -> dict[str, Any]:
    """The JSON object in a file, empty where there is no file."""
    value = files.read_json(path, fix) if path.is_file() else {}
    if not isinstance(value, dict):
        raise BertsmithError("this file holds no JSON object", path, fix)
    return value

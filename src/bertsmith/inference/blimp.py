"""The phenomena of BLiMP (Warstadt et al., 2020, table 4), each with its paradigms, which are BLiMP's files."""

from __future__ import annotations

_NUMBERED = {
    "principle_A_case": 2,
    "principle_A_domain": 3,
    "tough_vs_raising": 2,
    "passive": 2,
    "determiner_noun_agreement": 2,
    "determiner_noun_agreement_irregular": 2,
    "determiner_noun_agreement_with_adj_irregular": 2,
    "ellipsis_n_bar": 2,
    "npi_present": 2,
    "existential_there_quantifiers": 2,
    "superlative_quantifiers": 2,
    "irregular_plural_subject_verb_agreement": 2,
    "regular_plural_subject_verb_agreement": 2,
}
_PHENOMENA = {
    "anaphor agreement": "anaphor_gender_agreement anaphor_number_agreement",
    "argument structure": "animate_subject_passive animate_subject_trans causative drop_argument inchoative "
    "intransitive passive transitive",
    "binding": "principle_A_c_command principle_A_case principle_A_domain principle_A_reconstruction",
    "control and raising": "existential_there_object_raising existential_there_subject_raising "
    "expletive_it_object_raising tough_vs_raising",
    "determiner-noun agreement": "determiner_noun_agreement determiner_noun_agreement_irregular "
    "determiner_noun_agreement_with_adj_2 determiner_noun_agreement_with_adj_irregular "
    "determiner_noun_agreement_with_adjective_1",
    "ellipsis": "ellipsis_n_bar",
    "filler-gap": "wh_questions_object_gap wh_questions_subject_gap wh_questions_subject_gap_long_distance "
    "wh_vs_that_no_gap wh_vs_that_no_gap_long_distance wh_vs_that_with_gap wh_vs_that_with_gap_long_distance",
    "irregular forms": "irregular_past_participle_adjectives irregular_past_participle_verbs",
    "island effects": "adjunct_island complex_NP_island coordinate_structure_constraint_complex_left_branch "
    "coordinate_structure_constraint_object_extraction left_branch_island_echo_question "
    "left_branch_island_simple_question sentential_subject_island wh_island",
    "NPI licensing": "matrix_question_npi_licensor_present npi_present only_npi_licensor_present only_npi_scope "
    "sentential_negation_npi_licensor_present sentential_negation_npi_scope",
    "quantifiers": "existential_there_quantifiers superlative_quantifiers",
    "subject-verb agreement": "distractor_agreement_relational_noun distractor_agreement_relative_clause "
    "irregular_plural_subject_verb_agreement regular_plural_subject_verb_agreement",
}


def _paradigms(names: str) -> list[str]:
    return [
        paradigm
        for name in names.split()
        for paradigm in ([f"{name}_{number + 1}" for number in range(_NUMBERED[name])] if name in _NUMBERED else [name])
    ]


PHENOMENON = {paradigm: name for name, names in _PHENOMENA.items() for paradigm in _paradigms(names)}
"""The phenomenon of each paradigm."""

"""What the page offers, by the tests that show it, each at all widths. Needs no browser."""

import importlib

import pytest

from tests.page.conftest import SIZES

POINTS = {
    "page": [
        "an_answer_comes_as_it_is_written_and_tells_its_figures",
        "the_state_of_the_server_changes_under_load",
        "escape_ends_the_job_and_keeps_what_came",
    ],
    "messages": [
        "text_is_raw_and_thoughts_unfold_by_switches",
        "a_message_is_copied",
        "an_edited_question_is_asked_again_and_an_edited_answer_keeps_what_follows",
        "answers_are_regenerated_and_their_alternatives_shown",
        "an_answer_is_continued_where_it_ended",
        "a_deleted_message_comes_back_and_a_branch_is_a_conversation",
        "a_question_goes_to_two_columns_with_settings_of_their_own",
        "each_conversation_has_its_settings_and_sends_what_differs",
        "calls_of_tools_are_shown_and_their_results_asked_for",
        "the_context_and_a_file_are_told_in_tokens",
    ],
    "conversations": [
        "conversations_are_found_renamed_and_kept",
        "a_switch_keeps_nothing_and_gives_nothing_up_before_the_end",
        "undo_is_offered_for_ten_seconds",
        "a_deleted_conversation_comes_back_by_undo",
        "an_export_comes_back",
    ],
    "layout": [
        "markdown_fits_the_window_and_its_code_is_copied",
        "a_window_has_all_of_it_in_both_themes",
        "enter_sends_or_breaks_the_line_by_the_window",
        "all_of_a_chat_goes_by_keyboard",
        "messages_settings_and_columns_go_by_keyboard",
        "files_and_preferences_go_by_keyboard",
        "axe_finds_nothing",
    ],
}


@pytest.mark.parametrize(
    ("module", "test"), [(module, test) for module, tests in POINTS.items() for test in tests]
)
def test_each_point_of_the_page_is_tested_at_all_widths(module, test):
    found = getattr(importlib.import_module(f"tests.page.test_{module}"), f"test_{test}")
    marks = [mark.args for mark in found.pytestmark if mark.name == "parametrize"]
    assert {w for names, values in marks if names == "width" for w in values} >= SIZES.keys()

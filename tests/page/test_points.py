"""What the page offers, by the tests that show it, each at all widths. Needs no browser."""

import importlib

import pytest

from tests.page.conftest import SIZES

POINTS = {
    "Markdown is rendered while it streams": [
        "page.an_answer_comes_as_it_is_written_and_tells_its_figures"
    ],
    "Markdown and code, links, copying of code": [
        "layout.markdown_fits_the_window_and_its_code_is_copied"
    ],
    "raw text and unfolded thoughts": ["messages.text_is_raw_and_thoughts_unfold_by_switches"],
    "copy a message": ["messages.a_message_is_copied"],
    "edit a question or an answer": [
        "messages.an_edited_question_is_asked_again_and_an_edited_answer_keeps_what_follows"
    ],
    "regenerate and switch alternatives": [
        "messages.answers_are_regenerated_and_their_alternatives_shown"
    ],
    "continue": ["messages.an_answer_is_continued_where_it_ended"],
    "delete and branch": ["messages.a_deleted_message_comes_back_and_a_branch_is_a_conversation"],
    "figures of an answer": ["page.an_answer_comes_as_it_is_written_and_tells_its_figures"],
    "titles, search, rename, kept": ["conversations.conversations_are_found_renamed_and_kept"],
    "keep nothing": ["conversations.a_switch_keeps_nothing_and_gives_nothing_up_before_the_end"],
    "undo for ten seconds": [
        "conversations.undo_is_offered_for_ten_seconds",
        "conversations.a_deleted_conversation_comes_back_by_undo",
    ],
    "export and import": ["conversations.an_export_comes_back"],
    "one column of 75 characters": ["layout.a_window_has_all_of_it_in_both_themes"],
    "compare": ["messages.a_question_goes_to_two_columns_with_settings_of_their_own"],
    "settings, presets, samplers, forms": [
        "messages.each_conversation_has_its_settings_and_sends_what_differs"
    ],
    "tools": ["messages.calls_of_tools_are_shown_and_their_results_asked_for"],
    "context and files": ["messages.the_context_and_a_file_are_told_in_tokens"],
    "the server's line and chart": ["page.the_state_of_the_server_changes_under_load"],
    "Enter, by the window": ["layout.enter_sends_or_breaks_the_line_by_the_window"],
    "Escape stops": ["page.escape_ends_the_job_and_keeps_what_came"],
    "keyboard alone": [
        "layout.all_of_a_chat_goes_by_keyboard",
        "layout.messages_settings_and_columns_go_by_keyboard",
        "layout.files_and_preferences_go_by_keyboard",
    ],
    "axe, dark and light": ["layout.axe_finds_nothing"],
}


def widths(test):
    marks = [mark.args for mark in test.pytestmark if mark.name == "parametrize"]
    return {width for names, values in marks if names == "width" for width in values}


@pytest.mark.parametrize("point", POINTS)
def test_each_point_of_the_page_is_tested_at_all_widths(point):
    for name in POINTS[point]:
        module, _, test = name.partition(".")
        found = getattr(importlib.import_module(f"tests.page.test_{module}"), f"test_{test}")
        assert widths(found) >= SIZES.keys()

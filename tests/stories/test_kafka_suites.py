"""Goal: the assertions of Spark's tests of its Kafka source also hold for this source.

Method: the titles of the tests in KafkaMicroBatchSourceSuite, KafkaRelationSuite and KafkaDontFailOnDataLossSuite. Some
titles are shortened. Each title has the test of this project that asserts the same.

Left out are tests without a counterpart: consumer pools and groups, Kafka's configuration and serializers, header
columns, offsets of Spark 2.1, and continuous mode. Spark refuses continuous mode for Python sources.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
ADMISSION = "test_limits.py"
MANY = "test_many_ledgers.py"
OPTIONS = "test_options.py"
PLAN = "test_task_split.py"
SOURCE = "test_data_source.py"
SPARK_STREAM = "test_spark_stream.py"
STREAM = "test_stream_reader.py"
TITLES: dict[str, tuple[str, str]] = {
    "cannot stop Kafka stream": (SPARK_STREAM, "test_tail_with_a_subscription_over_restarts"),
    "assign from latest offsets (failOnDataLoss: true)": (
        STREAM,
        "test_latest_loses_nothing_when_the_first_batch_fails",
    ),
    "subscribing topic by name from earliest offsets": (STREAM, "test_batches_join_without_gap_or_overlap"),
    "subscribing topic by name from specific offsets": (MANY, "test_starts_and_ends_by_ledger_and_time"),
    "subscribing topic by name from specific timestamps": (MANY, "test_starts_and_ends_by_ledger_and_time"),
    "subscribing topic by name from timestamp per topic": (MANY, "test_starts_and_ends_by_ledger_and_time"),
    "subscribing topic by name from non-matching timestamps": (SOURCE, "test_a_time_to_start_from"),
    "subscribing topic by pattern from earliest offsets": (MANY, "test_a_list_a_pattern_and_partitions_are_one_stream"),
    "subscribing topic by pattern with topic deletions": (MANY, "test_a_ledger_deleted_or_made_again_is_noticed"),
    "subscribing topic by pattern with topic recreation between batches": (
        MANY,
        "test_a_ledger_deleted_or_made_again_is_noticed",
    ),
    "add partitions while the query runs": (
        MANY,
        "test_ledgers_and_partitions_created_later_are_read_from_their_start",
    ),
    "delete a topic when a Spark job is running": (MANY, "test_a_ledger_deleted_or_made_again_is_noticed"),
    "starting offset is latest by default": (STREAM, "test_latest_loses_nothing_when_the_first_batch_fails"),
    "maxOffsetsPerTrigger": (STREAM, "test_limits_and_available_now"),
    "minOffsetsPerTrigger": (MANY, "test_a_batch_waits_for_rows_but_not_for_ever"),
    "compositeReadLimit": (
        ADMISSION,
        "test_split_by_limit_takes_the_oldest_entry_and_reads_all_in_the_end",
    ),
    "rate limit set to Long.Max should not overflow": (STREAM, "test_the_largest_limit_is_none"),
    "maxOffsetsPerTrigger with non-uniform partitions": (
        ADMISSION,
        "test_a_small_ledger_is_read_to_its_end_beside_large_ones",
    ),
    "Trigger.AvailableNow": (MANY, "test_available_now_is_pinned_for_all_ledgers_and_a_limit_is_shared"),
    "Query with Trigger.AvailableNow should throw no error when new data comes": (
        MANY,
        "test_available_now_is_pinned_for_all_ledgers_and_a_limit_is_shared",
    ),
    "input row metrics": (SPARK_STREAM, "test_available_now_repeats_and_a_killed_broker"),
    "ensure that initial offset is kept for a restart": (SPARK_STREAM, "test_latest_loses_nothing_when_batch_0_fails"),
    "bad source options": (OPTIONS, "test_a_bad_value_is_named"),
    "get offsets from case insensitive parameters": (OPTIONS, "test_every_option_changes_something_in_any_case"),
    "minPartitions is supported": (PLAN, "test_little_is_one_task_and_much_is_cut_by_size"),
    "explicit earliest to latest offsets": (MANY, "test_a_list_a_pattern_and_partitions_are_one_stream"),
    "explicit offsets": (MANY, "test_starts_and_ends_by_ledger_and_time"),
    "timestamp provided for starting and ending": (MANY, "test_starts_and_ends_by_ledger_and_time"),
    "timestamp provided for ending, offset provided for starting": (MANY, "test_starts_and_ends_by_ledger_and_time"),
    "startingOffsets = latest is refused for batch": (OPTIONS, "test_what_one_use_only_makes_no_sense_of"),
    "endingOffsets = earliest is refused": (OPTIONS, "test_options_that_contradict_each_other_are_refused"),
    "failOnDataLoss=false should not return duplicated records: microbatch": (
        MANY,
        "test_trimmed_entries_fail_the_query_or_are_skipped_and_counted",
    ),
    "failOnDataLoss=false should not return duplicated records: batch": (
        MANY,
        "test_batch_trimmed_or_deleted_after_planning_fails_or_reads_the_rest",
    ),
}


@pytest.mark.parametrize("title", TITLES)
def test_each_title_is_asserted_where_it_says(title: str) -> None:
    file, name = TITLES[title]
    assert re.search(rf"^def {name}\(", next(TESTS.rglob(file)).read_text(encoding="utf-8"), re.MULTILINE)

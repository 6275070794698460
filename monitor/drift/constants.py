"""Every constant behind a verdict, each with its source, or a test of its effect (`file: test`).

A change of one is a change of `VERSION`: run the scorer before and after. Files are those of tests/drift; `scorer` is
tests/evaluation/test_alert_quality.py, whose whole run `make evaluate` makes. Names end in what they count: Z standard
errors, RATIO a share of what is expected, LOG a logarithm of odds; DAYS and HOURS are times.
"""

from __future__ import annotations

import numpy as np

# ---- time ----
REFERENCE_DAYS = 28  # four of each weekday; test_judge: a_shorter_reference_tolerates_more
LEAST_REFERENCE_DAYS = REFERENCE_DAYS // 2  # two of each weekday; test_judge: begins_after_two_weeks
REFERENCES_KEPT = 2  # test_judge: the_reference_stays_bounded_while_an_alarm_stays_open
STALE_DAYS = REFERENCE_DAYS + 7  # test_judge: two_months_without_traffic_end_the_baseline
GAP_HOURS = 6  # a longer pause ends the last hours; test_judge: a_step_of_little_traffic_before_a_gap
SHORT_HOURS = 3  # data faults show in it, a sudden fall lasts it; test_sudden_falls: two_low_hours_alone_raise_no_alarm
THIN_HOURS = (6, 12, 24)  # test_slices: lost_labels_of_a_thin_slice_are_not_a_worse_model_even_at_night
LASTING_DAYS = 7  # a whole week: no weekday is a trend; test_judge: a_lasting_improvement
LEFT_OUT_DAYS = 4  # a slow fall is found before it is the level; test_judge: does_not_follow_the_drop
RISE_DAYS = 10  # a sale or a holiday is shorter; test_judge: a_rise_that_ends_does_not_raise_later_expectations
LEVEL_MEMORY_DAYS = 12.0  # test_judge: a_lasting_rise_is_followed_once_it_is_old_enough
ERROR_MEMORY_DAYS = 60.0  # two months of forecasts; test_baseline: a_wandering_level_widens_the_tolerance
ERROR_BLOCK_DAYS = 3  # shorter than LEFT_OUT_DAYS, so each forecast leaves its days out
MIX_MEMORY_HOURS = 12.5  # half a day, with 24 h to warm up; scorer: mixshift
SETTLING_DAYS = 2  # test_new_level: after_two_days_there_are_verdicts_on_the_new_level

# ---- what any figure needs ----
ENOUGH_REQUESTS = 50  # relative error of a share near .5 is 14 %; test_judge: office_that_closes, thin_traffic_shows
FEW = 20  # labels, requests or rows from where on "few" is no chance; test_slices: a_few_refused_rows_do_not_blind
LABELS_REQUESTS = 100  # test_labels_suspect: a_third_of_few_labels_is_suspect_only_if_it_explains_nearly_all_of_the
LEAST_REQUESTS = 200  # for a unit of its own; for a spread: test_baseline: chance_on_thin_traffic_does_not_count_as
LEAST_OF_SLICE = 30  # in a reference, for a part in overall; test_slices: a_growing_thin_slice_pages_nobody_and_is_then
LEAST_WORTH = 30  # requests' worth whose absence is no chance (e^-30); test_labels_begin: zeros_that_may_be_chance
LEAST_CHANGE = 0.02  # relative change of a mean that is one; test_judge: a_decay_is_not_reported_when_small_or_under_an
STANDARD_ERRORS = 2.0  # 95 % of a normal distribution
SURE_Z = 5.0  # one in 3.5 million by a normal distribution; test_baseline: plain_noise_excludes_no_days_from_the
NEARLY_ALL = 0.9  # test_labels_in_no_measure: permanently_fewer_labels_become_usual_after_four_whole_days
NEXT_TO_NONE = 0.1  # a fault and no level, no spread; test_judge: next_to_no_traffic_is_reported_for_longer_and_none_at
TOLD_UNTIL = 0.6  # hysteresis: a told change stays told down to this share; test_judge: a_decay_that_is_mended
LIKELIER_LOG = 2.0  # odds of 7; test_fall_began: a_fall_small_against_its_noise_has_a_less_certain_start

# ---- reference ----
LABELS_LACKING = 3  # test_baseline: steps_of_a_request_or_two_count_whether_or_not
LABELS_SPREAD = 0.05  # least relative spread of a step's labels; test_baseline: an_outage_of_labels_gives_the_same
OUTLYING_CHANGE = 0.03  # test_baseline: outlier_days_in_the_reference_hide_no_later_fall
OUTLYING_SHARE = 0.4  # test_baseline: a_level_change_halfway_through_the_reference_excludes_no_days
SPELL_LOG = 7.0  # odds of 1,100; test_baseline: plain_noise_excludes_no_days_from_the, a_spell_on_thin_traffic
OUTLYING_ROUNDS = 3  # each outlier that is left out shows others; test_baseline: outlier_days_in_the_reference_hide_no
MAD = 1.4826  # standard deviations of a median absolute deviation, if normal (Rousseeuw and Croux, 1993)
DAYS_WITH_DATA = 0.75  # of the least reference; test_judge: days_before_there_was_any_traffic
COVERAGE_NOISE = 0.02  # least; test_judge: a_partial_loss_of_labels_is_suspect_too
VOLUME_NOISE = 0.12  # least; test_judge: low_traffic_is_reported_after_a_second_step_that_may_be_less_low

# ---- seasonality ----
HARMONICS = 4  # of the day; test_baseline: daily_and_weekly_cycles_are_found
SHARED_SPREAD = 0.01  # prior of the common cycle; test_baseline: daily_and_weekly_cycles
OWN_SPREAD = 0.005  # prior of a slice's own cycle
VOLUME_SPREAD = 0.7  # prior, of the logarithm; test_judge: weekends_of_next_to_no_traffic
WIDE_CYCLE = 0.015  # test_judge: weekends_that_are_worse_every_week_raise_no_alarm
FREE_PRECISION = 1e-3  # of a prior as wide as 30 times the level: any intercept
CYCLE_ROUNDS = 30  # EM has converged to 1e-3
NEWTON_ROUNDS = 15  # each takes an empty slot down by a factor of e; test_judge: a_day_of_rest
STEP_NOISE = 0.01  # a usual relative noise, as first guess; test_baseline: daily_and_weekly_cycles_are_found
REPEATED = 10.0  # autocorrelated steps say less than independent ones; scorer: none
LEAST_VARIANCE = 4e-4  # test_judge: a_measure_that_never_moves_is_healthy
LEAST_CYCLE = 0.1  # of the level, however low a cycle is fitted
CYCLE_ALIKE = 1e-9  # relative, rounding of sums; test_cycle: a_day_with_unfit_hours_does_not_update_the_cycle

# ---- noise ----
NOISE_FLOOR = 0.004  # relative; test_baseline: over_dispersion_is_measured_apart_from_sampling_error
NOISE_LAG_HOURS = 24  # Bartlett's window; test_baseline: autocorrelation_makes_the_long_run_noisier
LEAST_LONG_RUN = 3.0  # of the variance beyond sampling; scorer: none
MOST_LONG_RUN = 40.0  # test_judge: one_request_an_hour_is_judged_within_the_budget
LONG_RUN_TEMPER = 1.2  # most alarms take a day or less; scorer: none, drop5
WANDER_PERSISTENCES = np.array([0.8, 0.9, 0.95, 0.98])  # per hour; test_sudden_falls: dense_traffic_shows
WANDER_DEVIATIONS = 0.003 * 1.5 ** np.arange(10)  # .3 to 11.5 % of the level; test_sudden_falls: dense_traffic
WANDER_CLIP = 3.5  # standard errors (Huber, 1981)
WANDER_FREEDOM = 7.0  # Student's t of hourly misses; test_sudden_falls: noise_as_fitted_raises_no_alarm

# ---- what is tolerated ----
LEAST_TOLERATED = 0.01  # of overall, of a sudden fall, and by a shifted mix; test_judge: while_the_mix_is_shifted
MOST_TOLERATED = 0.04  # for forecast errors alone; scorer: drop5 found
TOLERATED_DEVIATIONS = 2.25  # of the forecast errors; test_baseline: a_wandering_level_widens_the_tolerance
SLOW_TEMPER = 0.25  # of the forecast errors' long-run variance in a step's noise; scorer: ramp10
DOUBTFUL_MIX = 1.5  # times the usual error of overall's level; test_judge: slices_that_come_up_with_hardly_any_traffic

# ---- levels ----
RISE_Z = 4.0  # test_judge: a_lasting_rise_is_followed_once_it_is_old_enough; on thin traffic: one_request_an_hour
FEWER_LABELS = 0.7  # of each day; test_labels_in_no_measure: losing_about_half_the_labels_soon_becomes_usual
FEWER_LABELS_TOGETHER = 0.65  # of all of these days; as above
USABLE_OF_DAY = 0.5  # test_new_level: a_day_missing_most_hours_does_not_count_towards_the_new_level

# ---- e-process ----
BUDGET_HOURS = 90 * 24  # the budget of false alarms is for 90 days; README, drift
OVERALL_SHARE = 0.5  # of the budget; test_baseline: the_budget_is_shared_by_overall_and_the_slices
RESERVE = 4.5  # the tolerated drop keeps most false alarms away; scorer: none, in 90 days
STAKES = np.array([0.5, 1.0, 2.0])  # standard deviations of a step; scorer: drop3 to drop35
LEAST_ALARM_HOURS = 4.0  # test_eprocess: one_step_alone_never_raises_an_alarm; scorer: blip2h
MOST_ALARM_HOURS = 7.0  # where chance makes hardly any of a step; test_eprocess, as above
EVIDENCE_CAP = 7.4  # times the threshold, e^2; scorer: alarms_close_after_a_rollback
LEAST_BET = 1e-3  # keeps kappa finite (Fan, Grama and Liu, 2015, lemma 4.1)

# ---- sudden falls ----
FALL_STARTS = 24  # an hour apart: the last day; test_sudden_falls: old_deviations_say_nothing_about_now
FALL_CLIP = 2.5  # standard errors of one step (Huber, 1981); test_sudden_falls: two_low_hours_alone_raise_no_alarm
FALL_TYPICAL = 0.1  # standard deviation of falls beyond what is tolerated; scorer: drop10 to drop35
FALL_WEIGHT = 0.55  # relative to the e-process, measured for the budget with RESERVE; scorer: none

# ---- alarms ----
CLOSING_LOG = 7.0  # 6 closed slices in one lasting fall of three; test_judge: an_alarm_that_opened_early_by_luck_stays
CLOSING_STEPS = 3  # at least; test_alarms: closes_when_the_mean_is_back_and_not_at_a_single_step
ALONG_LOG = -3.0  # test_alarms: closing_the_overall_alarm_closes_all_slices_but_a_low_one
NEAR_SHARE = 0.25  # test_fall_began: a_start_is_known_to_within_a_quarter_of_the_detection_time
PART_OF_FALL = 0.25  # test_fall_began: days_as_expected_or_hardly_lower_do_not_extend_a_fall

# ---- labels ----
LABELS_Z = -6.0  # one in a thousand million by a normal distribution; test_judge: labels_that_go_missing
LABELS_RATIO = 0.9  # test_data_checks: no_check_finds_anything_where_the_quick_look_is_clean
LABELS_RATIO_DEGRADED = 0.4  # who finds less clicks less; test_judge: a_broken_model_is_not_taken_for_lost_labels
LABELS_RATIO_SETTLING = 0.5  # test_new_level: labels_that_break_on_the_new_level, labels_that_are_gone
LABELS_EXPLAIN = 0.75  # of the fall, in logarithms; test_labels_suspect: a_model_that_costs_some_labels_too
LABELS_EXPLAIN_ALL = 0.85  # test_labels_suspect: a_third_of_few_labels_is_suspect_only_if_it_explains_nearly_all_of_the
LABELS_STILL_Z = -1.5  # test_labels_suspect: a_day_without_labels_on_thin_traffic_counts_only_while_they_stay_missing
LABELS_GONE = 0.3  # test_labels_suspect: a_third_of_few_labels_is_suspect_only_if_it_explains_nearly_all_of_the_fall
LABELS_OPENING_RATIO = 0.95  # test_labels_suspect: a_night_in_which_some_labels_are_lost
LABELS_RARE = 0.95  # gone of a few hours; test_labels_in_no_measure: widely_spread_labels_are_suspect_once_all_are_gone
LABELS_RARE_OF_DAY = 0.8  # test_labels_in_no_measure: thin_labels_that_vanish_are_found_within_two_days
LABELS_WIDE = 0.5  # relative spread of the coverage; test_labels_in_no_measure: spread_labels_are_suspect_once_all_are
SURE_LOG = 11.0  # Chernoff's bound, one in 60,000; test_slices: a_low_click_rate_does_not_count_as_lost_labels
SLICE_FEWER = 0.85  # test_slices: a_worse_slice_is_degraded_not_short_of_labels
SLICE_FEWEST = 0.25  # while its alarm is open; test_slices: a_slice_so_bad_that_few_click_stays_degraded
SLICE_Z = 4.0  # test_labels_in_no_measure: widely_spread_labels_are_suspect_once_all_are_gone
SLICE_SEEN_AGAIN = 0.8  # test_slices: lost_labels_of_a_thin_slice_are_not_a_worse_model_even_at_night
SLICE_CLEARLY_FEWER = 0.75  # test_slices: a_worse_slice_is_degraded_not_short_of_labels
LEAST_OF_OTHERS = 0.5  # test_slices: labels_lost_by_most_slices_are_reported_for_all_traffic
MOST_LOST = 0.5  # of the requests; test_slices: labels_lost_by_half_the_traffic_collapse_only_once
MOST_LOST_GOES_ON = 0.4  # as above: hysteresis downwards
MOST_LOST_BEGINS = 0.6  # as above: hysteresis upwards
COLLAPSED_DAYS = 1  # test_judge: collapsed_labels_come_with_the_rates_of_events

# ---- traffic, slices, rows, lists ----
TRAFFIC_Z = -3.5  # one in 4,300 by a normal distribution; scorer: volume12h, none
TRAFFIC_RATIO = 0.5  # test_judge: slightly_over_half_the_traffic_counts_as_low_only_right_after_less
TRAFFIC_CLOCKS_Z = -2.0  # test_judge: traffic_that_follows_a_clock_change_is_not_low
TRAFFIC_AGAIN_Z = -2.5  # test_judge: low_traffic_is_reported_after_a_second_step_that_may_be_less_low
TRAFFIC_AGAIN_RATIO = 0.6  # test_judge: low_traffic_is_reported_after_a_second_step_that_may_be_less_low
MISSING_RATIO = 0.02  # test_judge: a_slice_that_goes_missing_is_named_while_the_others_are_judged
SILENCE_CHANCE = 0.1  # false alarms in 90 days, over all slices; test_slices: a_slice_that_often_pauses_is_not_missing
AWAY_EXPECTED = 5.0  # none of five expected is chance once in 150 (Poisson); test_alarms: alarm_closes_all_slices_but_a
GONE_EXPECTED = 10  # none of ten in a day: once in 22,000; test_slices: a_slice_that_vanishes_is_withdrawn
REFUSED_RATIO = 3.0  # test_judge: refused_rows_are_reported
REFUSED_SHARE = 0.1  # of requests: fewer move a mean by less than is tolerated; test_slices: a_few_refused_rows
REFUSED_SPREAD = 0.5  # refused rows come in bursts; test_slices: a_few_refused_rows_do_not_blind
LISTS_RATIO = 0.6  # test_judge: slightly_shorter_or_longer_lists_are_healthy
LISTS_MIX = 0.2  # test_judge: lists_shorter_because_of_the_slice_mix_are_usual
LISTS_BEFORE = 10  # requests; test_judge: lists_that_are_shorter_every_night_are_usual
MIX_DEVIATIONS = 5.5  # scorer: mixshift; test_judge: a_mix_shift_is_reported_and_pages_nobody
DECAY = 0.05  # test_judge: a_decay_too_slow_for_an_alarm_is_reported_once_it_is_large

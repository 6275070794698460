"""What is the matter with the data of a day's steps: found one step after the other, and what there is to say of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from monitor.drift import gates
from monitor.drift.block import SHORT_HOURS, Block
from monitor.drift.levels import SHOWN
from monitor.drift.series import DAY, Bools, Floats, ratio, some, some_of
from monitor.drift.settings import DriftSettings
from monitor.drift.state import DataFaults, DriftState
from monitor.drift.verdicts import Kind, LabelLoss, SliceLabelLoss

COLLAPSED = DAY
"""Labels that have been suspect for so long are no passing fault."""
LEAST_FELT = 0.1
"""Share of a day's requests from which on slices whose lists got worse may have changed the labels of all."""
GONE = 7 * DAY
"""A slice that has been missing for so long is told no more."""


class FaultTracker:
    """What is the matter with the data of one block, step after step; `usual` is a day's crowd, (5,) as in `levels`.

    Attributes:
        now: what is, after the last step that was followed.
    """

    def __init__(self, settings: DriftSettings, state: DriftState, block: Block) -> None:
        """Go on from where `state` stands."""
        self.now = state.trouble
        self._settings = settings
        self._block = block
        self._slices = state.slices
        self._settled = state.settled
        self._few = settings.steps(SHORT_HOURS)
        self._past = state.recent.sums.shape[1]
        self._never = np.zeros(len(state.slices), np.int64)

    def step(self, row: int, fallen: Bools | None) -> Kind | None:
        """What is the matter with the data in a step, if anything. While a new level is learnt, only labels may be.

        Args:
            fallen: (U,) units on which an alarm is open before it; None if there are none.
        """
        was, block, end = self.now, self._block, self._block.ends[row]
        few, settled = self._few, self._settled
        lasting = (few - 1) * self._settings.step
        most_lost, refused = block.gated.most_lost[row], settled and block.gated.refused[row]
        # Rows that are refused are missing too, and it is known why.
        is_short = settled and not refused and self._has_short_lists(row)
        short_until = end + lasting if is_short else was.short_until
        # Clicks on items that are not logged any more are missing as well: what begins with these is no other trouble.
        is_hidden = end <= short_until and not was.suspect_since
        suspect = not is_hidden and (most_lost or self._suspects(row, fallen)[row] or self._still_lacks(row))
        until = end + lasting if suspect else was.suspect_until
        since = 0
        if end <= until:
            since = was.suspect_since or min(was.lost_since[was.lost_since > 0].tolist(), default=end)
        collapsed = since > 0 and (was.collapsed or (suspect and end - since >= COLLAPSED and self._lacks_labels(row)))
        is_low = block.gated.low[row] or (was.low == 1 and block.gated.low_again[row])
        is_told = was.low >= min(2, few)
        is_low = is_low or (is_told and block.gated.low_still[row])
        low = was.low + 1 if settled and is_low else 0
        missing = was.missing
        if some_of(missing) or (settled and some(block.gated.missing[row])):
            still = block.gated.missing[row] | ((missing > 0) & (block.requests[row] == 0))
            missing = np.where(still, missing + 1, 0)
        refused_until = end + lasting if refused else was.refused_until
        lost_until, lost_since = block.gated.lost_until[row], self._never
        if some(lost := end <= lost_until):
            lost_since = np.where(lost, np.where(was.lost_since > 0, was.lost_since, was.suspect_since or end), 0)
        worthless = bool(since) and (block.gated.worthless[row] if suspect else was.worthless)
        slices, held = (missing, lost_since, lost_until), was.held and since > 0
        self.now = DataFaults(
            since, until, collapsed, refused_until, short_until, low, *slices, most_lost, worthless, held
        )
        return self._matter(end)

    def hold(self, row: int, since: int) -> Kind | None:
        """What is the matter in the step that was followed last, whose labels are suspect since they explain a fall.

        Args:
            since: end of the fall's first step.
        """
        now, end = self.now, self._block.ends[row]
        lasting, began = (self._few - 1) * self._settings.step, now.suspect_since or since
        self.now = replace(now, suspect_since=began, suspect_until=end + lasting, held=True)
        return self._matter(end)

    def _still_lacks(self, row: int) -> bool:
        """Whether labels that were suspect for a fall that they explain are so still."""
        return self.now.held and gates.labels_still_lack(self._block.gated.short[:, row])

    def _matter(self, end: int) -> Kind | None:
        """The gravest of what is the matter with the data in the step that ends at `end`."""
        now = self.now
        if end <= now.short_until:
            return "positions_missing"
        if now.suspect_since:
            return "labels_collapsed" if now.collapsed else "labels_suspect"
        if end <= now.refused_until:
            return "rows_refused"
        if now.low >= min(2, self._few):
            return "traffic_low"
        if some_of(now.lost_since):
            is_long = end - int(now.lost_since[now.lost_since > 0].min()) >= COLLAPSED
            return "slice_labels_collapsed" if is_long else "slice_labels_suspect"
        return "slice_missing" if self.missing() else None

    def _has_short_lists(self, row: int) -> bool:
        """Whether lists are shorter than usual: since they became so, or have been for a while."""
        gated = self._block.gated
        return gated.short_lists[row] and (gated.lists_fell[row] or self._block.ends[row] <= self.now.short_until)

    def _suspects(self, row: int, fallen: Bools | None) -> list[bool]:
        gated = self._block.gated
        if not self._settled:
            return gated.suspect_settling
        return gated.suspect_degraded if fallen is not None and self.is_felt(row, fallen) else gated.suspect

    def is_felt(self, row: int, fallen: Bools) -> bool:
        """Whether what is open may be felt in the labels of all: not an alarm on a slice with next to no requests."""
        size = self._block.window[gates.REQUESTS, row + 1 : row + 1 + self._past].sum(axis=0)
        return bool(fallen[0] or size[fallen[1:]].sum() >= LEAST_FELT * size.sum())

    def _lacks_labels(self, row: int) -> bool:
        """Whether labels are missing in the step alone: what is suspect may be so for the hours before."""
        sums = self._block.gated.per_step[:, row]
        is_zero = sums[gates.TOTAL] == 0 < sums[gates.EXPECTED]
        return bool(is_zero or sums[gates.LABELLED] < gates.LABELS_RATIO * sums[gates.EXPECTED_LABELLED])

    def missing(self) -> tuple[str, ...]:
        """The slices that are, unless it is for too long to tell of it still."""
        steps = self.now.missing
        if not some_of(steps):
            return ()
        told = (steps >= 2) & (steps * self._settings.step < GONE)
        return tuple(self._slices[i] for i in np.flatnonzero(told))

    def lost(self, row: int) -> tuple[SliceLabelLoss, ...]:
        """The slices that have lost their labels, with what is left of these."""
        trouble, block = self.now, self._block
        if not some_of(trouble.lost_since):
            return ()
        past, found = self._past, list[SliceLabelLoss]()
        for i in np.flatnonzero(trouble.lost_since).tolist():
            since = int(trouble.lost_since[i])
            steps = min((block.ends[row] - since) // self._settings.step + 1, past)
            sums = block.window[:, past + row + 1 - steps : past + row + 1, i].sum(axis=1)
            parts = (ratio(sums[field], sums[gates.SERVED]) for field in (gates.LABELLED, gates.EXPECTED_LABELLED))
            found.append(SliceLabelLoss(self._slices[i], since, *parts))
        return tuple(found)

    def labels(self, row: int, usual: Floats) -> LabelLoss:
        """What has become of the labels since they are suspect, in a day at most."""
        block, since, past = self._block, self.now.suspect_since, self._past
        steps = min((block.ends[row] - since) // self._settings.step + 1, past)
        end = past + row + 1
        sums, crowd = block.window[:, end - steps : end].sum(axis=(1, 2)), block.crowd[:, end - steps : end].sum(axis=1)
        return LabelLoss(
            since,
            ratio(sums[gates.LABELLED], sums[gates.SERVED]),
            ratio(sums[gates.EXPECTED_LABELLED], sums[gates.SERVED]),
            ratio(crowd[gates.UNMATCHED] + crowd[gates.EVENTS], sums[gates.REQUESTS]),
            ratio(usual[2] + usual[1], usual[0]),
            ratio(crowd[gates.UNMATCHED], crowd[gates.UNMATCHED] + crowd[gates.EVENTS]),
            ratio(usual[2], usual[2] + usual[1]),
            steps * self._settings.step,
            self.now.worthless,
        )

    def shown(self, row: int, usual: Floats) -> tuple[float | None, float | None]:
        """Items a request in the last step that had too few, or in three hours until then, and as many as usual."""
        block, span = self._block, self._span_until(self.now.short_until, row)
        items, requests = block.crowd[gates.SHOWN, span], block.window[gates.REQUESTS, span].sum(axis=1)
        few = slice(-1, None) if requests[-1] >= gates.LISTS_REQUESTS else slice(None)
        return ratio(items[few].sum(), requests[few].sum()), ratio(usual[SHOWN], usual[0])

    def _span_until(self, until: int, row: int) -> slice:
        """The last three hours that were unusable by themselves, of what makes steps so until then, seconds."""
        few = self._few
        left = (until - self._block.ends[row]) // self._settings.step
        end = max(self._past + row + 1 - max(few - 1 - left, 0), few)
        return slice(end - few, end)

    def refused(self, row: int, usual: Floats) -> tuple[float, float | None]:
        """Rows that were refused in three hours, the last that had too many, and as many as usual for the requests."""
        block, span = self._block, self._span_until(self.now.refused_until, row)
        each = ratio(usual[3], usual[0])
        seen, size = block.crowd[gates.REFUSED, span].sum(), block.window[gates.REQUESTS, span].sum()
        return float(seen), None if each is None else each * float(size)

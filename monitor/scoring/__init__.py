"""Files of rankings and judgments -> `Rankings` -> values: the computation of `rankmon score`. Prints nothing.

A TREC run and its qrels are read as by trec_eval 9.0 and pytrec_eval. The rank column is ignored; items are ordered by
falling score, compared as 32-bit floats, and ties by falling docno, compared as bytes of UTF-8. (trec_eval 10 compares
64-bit scores: there, scores that differ by less than one part in 10^7 are not ties.) A negative judgment counts as
none, and an unjudged item is not relevant. A query of the run without qrels is left out, and so is one of the qrels
without a ranking, unless `complete` (trec_eval -c) counts it as zero. trec_eval's means are those of
`ideal=global,empty=zero`: its ndcg_cut_10 is `ndcg(ideal=global,empty=zero)@10`.

Bad input raises `InputError` with file, line and remedy; no row is skipped. NULL is an empty field, and for numbers
also NULL, null or \\N, in text files; null or a missing key elsewhere. A NULL grade is not a judgment, and a request
without any grade is not a sample.
"""

from monitor.scoring.lists import read
from monitor.scoring.report import ScoreReport, evaluate, refuse_above
from monitor.scoring.sheets import ALIASES, Names, on_disk

__all__ = ["ALIASES", "Names", "ScoreReport", "evaluate", "on_disk", "read", "refuse_above"]

"""The convergence theorem and its lemma, on a problem where everything they speak of can be computed."""

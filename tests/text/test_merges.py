from chairlift.text.merges import merges_of


def test_the_best_score_comes_first():
    assert merges_of([("ab", -2.0), ("bc", -1.0)], {"a", "b", "c"}) == [("b", "c"), ("a", "b")]


def test_every_cut_into_known_parts_is_a_merge_the_longest_left_part_first():
    assert merges_of([("aaa", 0.0)], {"a", "aa"}) == [("aa", "a"), ("a", "aa")]


def test_a_piece_without_known_parts_gives_no_merge():
    assert merges_of([("xy", 0.0)], {"x"}) == []


def test_equal_scores_keep_their_order():
    assert merges_of([("ab", 0.0), ("cd", 0.0)], set("abcd")) == [("a", "b"), ("c", "d")]

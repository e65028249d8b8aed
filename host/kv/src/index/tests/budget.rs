//! The byte budget is hard: it holds after every single change, whatever the changes are, by the index' own account of
//! every allocation it makes.

use super::*;

const BUDGET: Bytes = Bytes(300_000);

#[test]
fn ten_times_what_fits_never_exceeds_the_budget() {
    let mut index = PrefixIndex::new(BUDGET);
    let mut stored = 0;
    for prompt in 0..400u32 {
        let blocks = chain(&[prompt as u8, (prompt >> 8) as u8].repeat(200));
        for (n, part) in blocks.chunks(50).enumerate() {
            let parent = (n * 50).checked_sub(1).map(|before| blocks[before]);
            stored += index.stored(Holder::instance(prompt % 7), parent, part);
            assert!(index.used() <= BUDGET, "{:?} at {prompt}", index.used());
        }
        let ends = Moment(u64::from(prompt));
        index.predict(on(10 + prompt % 3), &blocks, ends);
        assert!(index.used() <= BUDGET, "{:?} predicted at {prompt}", index.used());
        if prompt % 90 == 89 {
            index.clear(on(prompt % 7));
        }
        index.expire(Moment(u64::from(prompt.saturating_sub(5))));
        assert!(index.used() <= BUDGET);
        let begun = held(&index, &blocks);
        assert!(
            !begun.is_empty(),
            "what came last is there, at least its beginning"
        );
    }
    assert!(
        stored > 10 * index.blocks(),
        "{stored} stored, {} kept",
        index.blocks()
    );
    assert!(index.blocks() > 2_000, "the budget is used: {}", index.blocks());
    check(&index);
}

#[test]
fn counts_beyond_one_are_within_the_budget_too() {
    let mut index = PrefixIndex::new(BUDGET);
    for round in 0..40 {
        let blocks = chain(&[round; 2_000]);
        for _ in 0..3 {
            index.stored(Holder::instance(0), None, &blocks);
            assert!(index.used() <= BUDGET, "{:?} in round {round}", index.used());
        }
    }
    check(&index);
}

#[test]
fn a_budget_of_nothing_holds_nothing() {
    let mut index = PrefixIndex::new(Bytes(0));
    let blocks = chain(&[1; 100]);
    assert_eq!(index.stored(Holder::instance(0), None, &blocks), 0);
    index.predict(on(0), &blocks, Moment(1));
    assert_eq!((index.blocks(), held(&index, &blocks)), (0, vec![]));
}

#[test]
fn what_an_instance_holds_by_its_own_word_is_listed() {
    let index = SharedIndex::new(AMPLE);
    let blocks = chain(&[9; 300]);
    let second_rank = Holder {
        place: Place { instance: 3, rank: 1 },
        ..Holder::instance(3)
    };
    index.stored(Holder::instance(3), None, &blocks[..100]);
    index.stored(second_rank, None, &blocks[50..150]);
    index.stored(Holder::instance(4), None, &blocks[..200]);
    index.predict(on(3), &blocks, Moment(10));
    let mut expected = blocks[..150].to_vec();
    expected.sort_unstable();
    assert_eq!(
        index.held_by(3),
        expected,
        "each once, and nothing that is only predicted"
    );
    assert_eq!(
        index.by_holding(3, &blocks[148..152]),
        (blocks[148..150].to_vec(), blocks[150..152].to_vec())
    );
    index.clear(on(3));
    assert_eq!(index.held_by(3).len(), 100, "the other rank's");
    assert_eq!(index.held_by(5), []);
}

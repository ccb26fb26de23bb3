//! Shrinks a run that breaks a promise to the fewest steps that still break one.

use crate::plan::Plan;

/// The plan with as few of its steps as were found to suffice for `fails`. Ever smaller pieces are left out, as long as
/// it fails all the same.
pub fn shrink(plan: &Plan, fails: impl Fn(&Plan) -> bool) -> Plan {
    let mut left = plan.clone();
    let mut piece = left.steps.len().div_ceil(2);
    while piece > 0 {
        let mut at = 0;
        while at < left.steps.len() {
            let mut fewer = left.clone();
            fewer.steps.drain(at..(at + piece).min(left.steps.len()));
            if fails(&fewer) {
                left = fewer;
            } else {
                at += piece;
            }
        }
        piece /= 2;
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_matter_is_left_out() {
        let plan = Plan::draw(3);
        let matters = [1, plan.steps.len() - 1];
        let has = |plan: &Plan, number: usize| plan.steps.iter().any(|step| step.number == number);
        let fewest = shrink(&plan, |plan| matters.iter().all(|number| has(plan, *number)));
        assert_eq!(fewest.steps.iter().map(|step| step.number).collect::<Vec<_>>(), matters);
    }
}

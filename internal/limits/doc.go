// Package limits is the rules that bound how the lanes of a fleet are used: how many calls of a
// lane run at once, and how many start in a time.
//
//	coordinator limits set ──► TF_LIMITS, key "rules": all rules, replaced by compare-and-set
//	                                 │ watched: within a second
//	                                 ▼
//	                           each worker: Watch ──► rule of a lane ──► core.Limit, counted by its holder
//
// All rules are one record, so that a change is checked against the rules that it meets. The record
// decides; a worker that cannot read it keeps the rules that it read last. Without the bucket there
// are no rules.
package limits

// Package prose makes texts fit for a model: valid UTF-8, without control characters,
// within a length, and saying what was left out. JSON that is cut is JSON still.
package prose

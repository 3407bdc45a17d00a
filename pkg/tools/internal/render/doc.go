// Package render makes the texts that a model reads of results: one function for each
// kind of value, and one form for everything that is not ok.
package render

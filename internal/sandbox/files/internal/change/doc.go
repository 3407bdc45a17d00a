// Package change makes new content of old: replacements of texts, unified diffs, values of JSON
// documents. It is pure: files are read and written elsewhere, and a name is there for messages
// only. What cannot be done is a *[protocol.Error] that says what a model can do about it.
package change

// Package workspace says what the paths that a model writes mean: which file of the
// workspace, and so which resource key. It is lexical and touches no file.
package workspace

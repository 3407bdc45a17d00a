// Package gitguard knows what a person's git runs of its own accord in a directory that a session
// works on: hooks, and the programs that settings name. It asks git itself, in a way that runs
// nothing, so that includes, redirections and settings of any repository are seen as git sees them.
//
//	before a sandbox opens   [Protected]         the paths that commands must not change
//	before a turn            [Look]              what git would run now
//	after it                 [Watch.Findings]    what git would run that it would not have run
//
// Some ways into a person's git cannot be shut: a repository that a session makes is its own, and
// git enters it from the one around it. These are found at the end of a turn, and reported by name.
//
// Without a git on this host, paths are those that every repository has, and nothing is found.
package gitguard

// Package policy decides which tool calls of a session may be made.
//
//	tools:    {allow: [read, write, edit, "json_*", bash], deny: [json_write]}
//	commands: {allow: [git status, git diff, go test, ls, cat], deny: ["git push"]}
//	paths:    {write: [src, docs], except: [bash]}
//	max_calls: 200
//	max_calls_of: {bash: 20}
//	min_level: full
//	approval: {tools: [write], commands: [git commit], timeout: 5m}
//
// A [Policy] is the rules as an operator writes them, YAML or JSON; [New] checks them
// and makes a [Judge], which is pure: the same call at the same place gets the same
// [Verdict]. So a resumed session decides as it did. What was asked of a person is not
// pure, and is journaled by package loop.
//
// Rules of different sorts all have to agree. Where something cannot be known, as with a
// variable in the place of a program's name, a rule that cares says no. docs/policy.md
// says what each rule means, and what it cannot see.
package policy

// Package login lets a worker into servers of the Model Context Protocol that ask who comes
// (OAuth 2.1).
//
//	person ──► Ask: URL, browser, code ──► tokens ──► file of a Store (mode 0600)
//	                                                    │        ▲ renewed under the file's lock
//	call ──► Transport ◄── access token ────────────────┘        │
//	            │  expired, or the server answers 401 ───────────┘
//	            └─ none, refused, too few scopes: login_required, which says what to run
//
//	call ──► Machine: client credentials ──► access token, in memory
//
// The file is authoritative: it is read for every request, so that what a person or another
// process puts there counts at once. A login is bound to the name and the URL of its server; no
// other gets the token. Tokens are in the file and in headers of requests to the server, and
// nowhere else: errors name what an authorization server said by its code only.
package login

// Package browser tests the web pages as people use them: a real Chromium, a coordinator, workers
// and a scripted model, each of them a process of its own. It knows the programs only by their
// pages, their HTTP API and their flags, and so is a module of its own, which no other one needs.
//
//	test ──► Chromium ──► coordinator serve --http ◄── workers
//	 │       (chromedp)         ▲
//	 └───────── HTTP API ───────┘  what a page is to show
//
// A [tab] fails its test for each error in the console, each violation of the pages' policy, each
// request to another host and each dialog. make browser runs all of it.
package browser

// Package loop runs agent sessions.
package loop

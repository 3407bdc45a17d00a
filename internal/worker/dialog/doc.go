// Package dialog keeps the functions of stateful tools alive between the calls that
// they answer.
//
//	dialog_open ───► Open ─────► goroutine: run(ctx, talk, arguments)
//	   output ◄───────────────────────── talk.Yield(output) ── waits, with all it knows
//	dialog_continue ► Continue ─► input ─► Yield returns ... ── Yield(output) again, or returns
//	dialog_end ─────► End ──────► ctx ends, Yield returns the error
//
// A dialog lives in the worker that opened it, and as long as one lives the worker keeps
// the lane that it was opened in, although no call comes. So calls that continue it are
// ordinary calls of that lane, and come here in its order. After the loss of the worker, the
// next holder of the lane does not know the dialog, and says so. Other calls that use the
// dialog's resource are ordered with its calls.
//
// A dialog ends when its function returns, on request, after its idle time or its life,
// with the lane, and when a call is stopped and the function does not answer within
// the grace. How it ended is remembered, for the last dialogs of the worker.
package dialog

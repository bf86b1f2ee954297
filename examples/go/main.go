// Command shop sends a mail, makes a picture smaller and writes a report, each as a job. It is both the program that
// enqueues them and the worker; two programs would look the same.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"tickr"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := declare(ctx); err != nil {
		return err
	}
	worker, err := newWorker()
	if err != nil {
		return err
	}
	working, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(working) }()
	err = sell(ctx)
	stop()
	if left := <-ended; err == nil {
		err = left
	}
	return err
}

// sell sells one picture: three jobs, of which the report waits for the other two.
func sell(ctx context.Context) error {
	client, err := tickr.NewClient(tickr.Config{})
	if err != nil {
		return err
	}
	thanks := Mail{To: "ada@example.com", Subject: "Your picture", Text: "Thank you."}
	mail, err := sendMail.Enqueue(ctx, client, thanks, tickr.Options{Queue: queue})
	if err != nil {
		return err
	}
	picture, err := resizePicture.Enqueue(ctx, client, Picture{Width: 64}, tickr.Options{Queue: queue, Priority: tickr.Int(2)})
	if err != nil {
		return err
	}
	behind := tickr.Options{Queue: queue, After: []string{mail.ID, picture.ID}}
	report, err := makeReport.Enqueue(ctx, client, Report{Orders: 20}, behind)
	if err != nil {
		return err
	}
	for _, job := range []*tickr.Enqueued{mail, picture, report} {
		ended, err := client.Wait(ctx, job.ID)
		if err != nil {
			return err
		}
		fmt.Printf("%s: %s %s\n", ended.ID, ended.State, ended.Result)
		if ended.State != tickr.Completed {
			return fmt.Errorf("job %s: %s", ended.ID, ended.LastError)
		}
	}
	return nil
}

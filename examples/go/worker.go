package main

import (
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"time"

	"tickr"
)

const folder = "out"

func newWorker() (*tickr.Worker, error) {
	config := tickr.WorkerConfig{Name: "shop-go", Queues: []string{queue}, Slots: 4, Grace: 5 * time.Second}
	worker, err := tickr.NewWorker(config)
	if err != nil {
		return nil, err
	}
	tickr.Handle(worker, sendMail, mail)
	tickr.Handle(worker, resizePicture, resize)
	tickr.Handle(worker, makeReport, report)
	return worker, os.MkdirAll(folder, 0o755)
}

func mail(_ context.Context, job Mail, attempt *tickr.Attempt) (File, error) {
	if !strings.Contains(job.To, "@") {
		// No further attempt helps.
		return File{}, tickr.Rejectf("%s is no address", job.To)
	}
	if attempt.Attempt == 1 {
		// Like the first connection to a mail server that is busy.
		return File{}, errors.New("the mail server is busy")
	}
	// The id is the same in each attempt, so that a repetition sends the same mail.
	file := attempt.ID + ".eml"
	text := fmt.Sprintf("To: %s\r\nSubject: %s\r\nMessage-ID: <%s>\r\n\r\n%s\r\n", job.To, job.Subject, file, job.Text)
	attempt.Log("mail to %s", job.To)
	return File{File: file}, os.WriteFile(filepath.Join(folder, file), []byte(text), 0o644)
}

// resize draws a picture of 512 × 512 points and makes it smaller.
func resize(ctx context.Context, job Picture, attempt *tickr.Attempt) (File, error) {
	const size = 512
	small := image.NewGray(image.Rect(0, 0, job.Width, job.Width))
	for y := 0; y < job.Width; y++ {
		if err := ctx.Err(); err != nil {
			return File{}, err
		}
		for x := 0; x < job.Width; x++ {
			top, left := y*size/job.Width, x*size/job.Width
			small.SetGray(x, y, color.Gray{Y: uint8(top ^ left)})
		}
	}
	name := attempt.ID + ".png"
	file, err := os.Create(filepath.Join(folder, name))
	if err != nil {
		return File{}, err
	}
	defer file.Close()
	attempt.Log("a picture of %d points", job.Width*job.Width)
	return File{File: name}, png.Encode(file, small)
}

// report writes one line for each order. A further attempt goes on behind the last one.
func report(ctx context.Context, job Report, attempt *tickr.Attempt) (File, error) {
	var done struct{ Row, Total int }
	if _, err := attempt.Checkpoint(&done); err != nil {
		return File{}, err
	}
	name := attempt.ID + ".csv"
	file, err := os.OpenFile(filepath.Join(folder, name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return File{}, err
	}
	defer file.Close()
	for done.Row < job.Orders {
		done.Row++
		done.Total += done.Row * 100
		if _, err := fmt.Fprintf(file, "%d,%d\n", done.Row, done.Row*100); err != nil {
			return File{}, err
		}
		if err := attempt.SaveCheckpoint(done); err != nil {
			return File{}, err
		}
		attempt.Progress(100*float64(done.Row)/float64(job.Orders), fmt.Sprintf("order %d", done.Row))
		if err := attempt.Sleep(ctx, 20*time.Millisecond); err != nil {
			return File{}, err
		}
	}
	return File{File: name, Total: done.Total}, nil
}

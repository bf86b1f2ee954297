<?php

return [
    'default' => 'log',
    'mailers' => ['log' => ['transport' => 'log', 'channel' => 'mails']],
    'from' => ['address' => 'shop@example.com', 'name' => 'The shop'],
];

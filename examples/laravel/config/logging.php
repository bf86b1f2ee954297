<?php

return [
    'default' => 'shop',
    'channels' => [
        'shop' => ['driver' => 'single', 'path' => getenv('SHOP_DIR') . '/shop.log'],
        'mails' => ['driver' => 'single', 'path' => getenv('SHOP_DIR') . '/mails.log'],
    ],
];
